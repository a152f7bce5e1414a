"""Trainers whose layers are Megatron-core's: one rank of a cell, or one device by itself."""

import warnings
from importlib import import_module

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.distributed.rank_comm import CommGroup, RankComm
from gyre.trainer.distributed.rank_trainer import RankTrainer
from gyre.trainer.protocol import CellTrainer
from gyre.trainer.trainer import Trainer
from gyre.types.errors import ConfigError

HINT = "trainer.kind = \"megatron\" needs Megatron-core: pip install 'gyre-rl[megatron]'"


def megatron_rank(
    network: Network,
    lines: RankComm,
    *,
    section: TrainerConfig,
    objective: LossConfig,
    optimizer: OptimizerConfig | None,
    temperature: float = 1.0,
    version: int = 0,
) -> RankTrainer:
    """A rank as any other, whose part of the network Megatron's layers compute."""
    trainer = RankTrainer(
        network,
        lines,
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
        version=version,
    )
    place = lines.place
    install(network, line=lines.within, shard=place.shard, shards=place.shards)
    return trainer


def open_trainer(
    network: Network,
    *,
    section: TrainerConfig,
    objective: LossConfig,
    optimizer: OptimizerConfig | None,
    temperature: float = 1.0,
    version: int = 0,
) -> CellTrainer:
    """The trainer of one device, whose network has Megatron's layers."""
    install(network, line=None, shard=0, shards=1)
    return Trainer(
        network,
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
        version=version,
    )


def install(network: Network, *, line: CommGroup | None, shard: int, shards: int) -> None:
    """Layers that the network still has are Megatron's from now on, which is loaded only now."""
    with warnings.catch_warnings():
        # It tells of everything that it falls back from, Apex and Transformer Engine above all.
        warnings.simplefilter("ignore")
        try:
            layers = import_module("gyre.trainer.megatron.layers")
        except ImportError as error:
            # It is not there, or another version of it, in which not all of these are.
            if error.name is None or error.name.partition(".")[0] != "megatron":
                raise
            raise ConfigError(f"{HINT}: {error}") from error
        layers.install(network, line=line, shard=shard, shards=shards)
    # Said at the first pass, of sums that run beside other work; over our lines none does.
    warnings.filterwarnings("ignore", message="When using async grad allreduce")
