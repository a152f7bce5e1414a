"""Training on an execution shaped like the case study: each shared prefix once, beside rows."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.case_study import ADMITTED, MESSAGE_TOKENS, PATHS, SYSTEM_TOKENS, rows
from benchmarks.gpu.clock import timed
from benchmarks.gpu.networks import qwen3

from gyre.model.network import Network
from gyre.stream.packing import Admitted, Packing, pack
from gyre.train.cell import LocalTrainer
from gyre.words.ids import ExecutionId
from gyre.words.sections import ObjectiveSection, TrainerSection

PACK_TOKENS = 65_536
CASES = {"5 trajectories": ADMITTED, "all trajectories": tuple(range(len(PATHS)))}
SETTINGS = {
    "model": "Qwen3-0.6B's size, random weights, bf16",
    "pack_tokens": PACK_TOKENS,
    "system_tokens": SYSTEM_TOKENS,
    "message_tokens": MESSAGE_TOKENS,
    "rows": "each path alone, by the same trainer and the faster attention for rows",
}


def measure(runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sample per case, way and run; the two ways take turns."""
    trainer = LocalTrainer(
        Network(qwen3()),
        section=TrainerSection(pack_tokens=PACK_TOKENS),
        objective=ObjectiveSection(),
        optimizer=None,
    )
    for case, chosen in CASES.items():
        admitted = Admitted(execution=ExecutionId("e"), advantage=1.0, rows=tuple(rows(chosen)))
        ways = {
            way: pack([admitted], pack_tokens=PACK_TOKENS, claim_tokens=2**24, sharing=sharing)
            for way, sharing in (("rows", False), ("tree", True))
        }
        for run in range(runs + 1):
            for way, packing in ways.items():
                _, taken = timed(lambda packing=packing: _train(trainer, packing))
                if run:
                    yield (
                        f"{case}, {way}",
                        {
                            "seconds": taken.seconds,
                            "peak_bytes": taken.peak_bytes,
                            "tokens": packing.num_tokens,
                            "pairs": packing.num_pairs,
                            "targets": packing.num_targets,
                        },
                    )


def _train(trainer: LocalTrainer, packing: Packing) -> None:
    for claim in packing.claims:
        trainer.train(claim, num_executions=1)
    trainer.clear()
