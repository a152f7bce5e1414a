"""A cell's own engine and trainer, which have computed what letters make before the run begins.

On CUDA the first passes of a process compile for about a minute, which happens once in a run of
hours and would be a fifth of these.
"""

from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

import numpy as np
from benchmarks.gpu.live.warmed import warm

from gyre.backends.engines.embedded import EmbeddedEngine
from gyre.engine.loop import Loop
from gyre.model.network import Network
from gyre.stream.packing import Admitted, pack
from gyre.train.cell import LocalTrainer
from gyre.tree.rows import Row
from gyre.words.ids import CallId, ExecutionId
from gyre.words.packs import Claim
from gyre.words.sections import EngineSection, ObjectiveSection, OptimizerSection, TrainerSection

EXECUTIONS = (2, 5, 8)
"""Of one claim each: lengths differ, so that no later one is the first to do so."""
CLERK, HELPER = (250, 1700), (180, 30)
"""Tokens of a row that all share, and its own."""
HELPERS = 9
REPLY_TOKENS = 12
IDS = 700


def engine(
    network: Network,
    *,
    name: str,
    section: EngineSection,
    folder: Path,
    options: Mapping[str, str],
) -> EmbeddedEngine:
    """The embedded engine, which has served every number of calls at once."""
    seed = crc32(f"{options['seed']}/{name}".encode())
    loop = Loop(network, section, model=str(folder), seed=seed)
    warm(loop, section.capacity)
    return EmbeddedEngine(name, loop)


def trainer(
    network: Network,
    *,
    section: TrainerSection,
    objective: ObjectiveSection,
    optimizer: OptimizerSection | None,
    temperature: float,
    options: Mapping[str, str],
) -> LocalTrainer:
    """The trainer of one device, whose sum is empty again."""
    made = LocalTrainer(
        network,
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
    )
    for number in EXECUTIONS:
        for claim in _claims(number, pack_tokens=section.pack_tokens):
            made.train(claim, num_executions=number)
    made.clear()
    return made


def _claims(number: int, *, pack_tokens: int) -> tuple[Claim, ...]:
    rng = np.random.default_rng(number)
    shared = rng.integers(0, IDS, CLERK[0], dtype=np.int32)
    admitted = [
        Admitted(
            execution=ExecutionId(f"warm-{execution}"),
            advantage=1.0,
            rows=(
                _row(0, shared, CLERK[1], rng),
                *(_row(one + 1, shared[: HELPER[0]], HELPER[1], rng) for one in range(HELPERS)),
            ),
        )
        for execution in range(number)
    ]
    return pack(admitted, pack_tokens=pack_tokens, sharing=True).claims


def _row(leaf: int, shared: np.ndarray, own: int, rng: np.random.Generator) -> Row:
    ids = np.concatenate([shared, rng.integers(0, IDS, own, dtype=np.int32)])
    return Row(
        leaf=CallId(leaf),
        role="main",
        ids=ids,
        targets=np.arange(len(ids) - REPLY_TOKENS, len(ids), dtype=np.int32),
        # Above what any network gives, so that nothing is clipped and all is computed.
        logprobs=np.full(REPLY_TOKENS, -1.0, dtype=np.float32),
        versions=None,
    )
