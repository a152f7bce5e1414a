"""A cell's own engine and trainer, which have computed once before the run begins.

On CUDA the first passes of a process compile and choose kernels. For the trainer's layers that
takes longer than any of these runs and happens once in a run of hours, so that here they stay as
they are written.
"""

import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from benchmarks.gpu.live.spied import Spy
from benchmarks.gpu.step import row

from gyre.config.sections import EngineConfig, LossConfig, OptimizerConfig, TrainerConfig
from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.inference.engine.engine import EngineCore
from gyre.model.network import Network
from gyre.trainer.trainer import Trainer
from gyre.types.sampling import GenerateRequest, SamplingParams
from gyre.types.training import Claim, ClaimReport, Score

PROMPT_TOKENS = 300
FIRST_PASSES = 3
"""That a call has had before the next one comes."""
FIRST_TOKENS = 4 * FIRST_PASSES
"""Of the call that ends first."""


def engine(
    network: Network,
    *,
    name: str,
    section: EngineConfig,
    folder: Path,
    options: Mapping[str, str],
) -> EmbeddedEngine:
    """The embedded engine, which has served every number of calls at once; from then on its
    process says into the folder `spied` what its threads are at, if there is one."""
    number = int(name.rpartition("-")[2])
    loop = EngineCore(
        network, section, model=str(folder), seed=int(options["seed"]) * 1000 + number
    )
    with _said("engine"):
        warm(loop, section.capacity)
    if "spied" in options:
        Spy(Path(options["spied"]) / f"{name}.jsonl").start()
    return EmbeddedEngine(name, loop)


def warm(loop: EngineCore, capacity: int) -> None:
    """One call, another beside it, and then all the others, so that every pass has been made: a
    prompt alone, beside one call that samples and beside several, and sampling for as many at once
    as there ever can be, and then for fewer."""
    rng = np.random.default_rng(0)
    for number in range(capacity):
        ids = rng.integers(0, 700, PROMPT_TOKENS, dtype=np.int32)
        loop.submit(
            GenerateRequest(
                id=f"warm-{number}",
                input_ids=array("i", ids.tolist()).tobytes(),
                sampling=SamplingParams(max_tokens=FIRST_TOKENS + 2 * number),
                execution=str(number),
            )
        )
        if number < 2:
            for _ in range(FIRST_PASSES):
                loop.step()
    while loop.has_calls:
        loop.step()


class Uncompiled(Trainer):
    """The trainer of one device, whose layers are not compiled; attention is the same."""

    def score(self, claim: Claim) -> tuple[Score, ...]:
        with torch.compiler.set_stance("force_eager"):
            return super().score(claim)

    def train(
        self, claim: Claim, *, num_executions: int, scores: Sequence[Score] | None = None
    ) -> ClaimReport:
        # The engine of the same process rests meanwhile, and what it compiled stays.
        with torch.compiler.set_stance("force_eager"):
            return super().train(claim, num_executions=num_executions, scores=scores)


def trainer(
    network: Network,
    *,
    section: TrainerConfig,
    objective: LossConfig,
    optimizer: OptimizerConfig | None,
    temperature: float,
    options: Mapping[str, str],
) -> Trainer:
    """The trainer of one device, whose sum is empty again."""
    made = Uncompiled(
        network,
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
    )
    with _said("trainer"):
        count = section.pack_tokens
        made.train(row(count, num_tokens=count, vocabulary=700), num_executions=1)
        made.clear()
        made.offload()
        made.reload()
    return made


@contextmanager
def _said(what: str) -> Iterator[None]:
    """How long it takes stands in the cell's log."""
    began = time.monotonic()
    yield
    print(f"{what}: warm after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
