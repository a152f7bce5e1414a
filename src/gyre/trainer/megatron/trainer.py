"""Trainers whose layers are Megatron-core's: one rank of a cell, or one device by itself."""

import warnings
from importlib import import_module
from pathlib import Path

import torch

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.loader import load_network
from gyre.model.network import Network
from gyre.trainer.distributed.rank_comm import CommGroup, RankComm
from gyre.trainer.distributed.rank_trainer import RankTrainer
from gyre.trainer.trainer import Trainer
from gyre.types.errors import ConfigError
from gyre.types.protocols import CellTrainer

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
    model: str | Path | Network,
    *,
    section: TrainerConfig,
    objective: LossConfig,
    optimizer: OptimizerConfig | None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    temperature: float = 1.0,
    version: int = 0,
) -> CellTrainer:
    """A model by name or folder, or one that is there, on one device behind the Trainer port."""
    if not isinstance(model, Network):
        model = load_network(model, device=device, dtype=dtype)
    install(model, line=None, shard=0, shards=1)
    return Trainer(
        model,
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
