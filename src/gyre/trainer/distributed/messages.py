"""Micro-steps and what they came to, as the plain numbers that ranks of a cell exchange."""

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre.trainer.distributed.pipeline_schedule import HeaderKind
from gyre.trainer.loss import Measures
from gyre.types.ids import CallId, ExecutionId
from gyre.types.packs import Pack, Score, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """One micro-step for all ranks of a cell."""

    pack: Pack
    shares: tuple[Share, ...]
    """Those of the claim, in the order that the pack's targets refer to."""
    num_executions: int
    """B*N, whoever of them has tokens."""
    scores: tuple[Score, ...] | None
    """Of each share over the whole claim; None asks for scores and trains nothing (SPEC 8.3)."""

    @property
    def kind(self) -> HeaderKind:
        return HeaderKind.SCORE if self.scores is None else HeaderKind.RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStepResult:
    """What a micro-step came to."""

    work: MicroStep
    scores: tuple[Score, ...]
    """Of each share, over the targets of this pack."""
    loss: float | None
    """The pack's part of the batch loss; None where it was only scored."""
    measures: Measures
    """Where it was only scored, clipping and the cap are not known, and count as none."""


NUM_HEADER = 6
"""Kind, tokens, targets, shares, executions, bytes of names."""


def header(work: MicroStep | HeaderKind) -> Tensor:
    """The first thing said about a micro-step, or all there is to say."""
    if isinstance(work, HeaderKind):
        return torch.tensor([work, 0, 0, 0, 0, 0])
    pack = work.pack
    sizes = [pack.num_tokens, pack.num_targets, len(work.shares), work.num_executions]
    return torch.tensor([work.kind, *sizes, len(_names(work))])


def kind_of(header: Tensor) -> HeaderKind:
    return HeaderKind(int(header[0]))


def num_bytes(header: Tensor) -> int:
    """Of the payload that follows."""
    _, tokens, targets, shares, _, names = header.tolist()
    return 32 * shares + 12 * tokens + 16 * targets + names  # type: ignore[no-any-return]


def payload(work: MicroStep) -> Tensor:
    """Everything about a micro-step that its header does not say; widest numbers first."""
    pack = work.pack
    scores = work.scores or (Score(sum_log_ratio=0.0, count=0),) * len(work.shares)
    arrays: list[NDArray[Any]] = [
        np.array([one.advantage for one in work.shares], np.float64),
        np.array([one.sum_log_ratio for one in scores], np.float64),
        np.array([one.num_targets for one in work.shares], np.int64),
        np.array([one.count for one in scores], np.int64),
        *(pack.ids, pack.positions, pack.tout),
        *(pack.predictors, pack.labels, pack.shares, pack.behaviour),
    ]
    data = b"".join([*(one.tobytes() for one in arrays), _names(work)])
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def work_from(header: Tensor, payload: Tensor) -> MicroStep:
    """What another rank made header and payload of."""
    _, tokens, targets, shares, executions, _ = header.tolist()
    rest = payload.numpy().tobytes()

    def take(count: int, dtype: type[np.generic]) -> NDArray[Any]:
        nonlocal rest
        size = count * np.dtype(dtype).itemsize
        array, rest = np.frombuffer(rest[:size], dtype), rest[size:]
        return array

    advantages, sums = (take(shares, np.float64).tolist() for _ in range(2))
    lengths, counts = (take(shares, np.int64).tolist() for _ in range(2))
    pack = Pack(
        ids=take(tokens, np.int32),
        positions=take(tokens, np.int32),
        tout=take(tokens, np.int32),
        predictors=take(targets, np.int32),
        labels=take(targets, np.int32),
        shares=take(targets, np.int32),
        behaviour=take(targets, np.float32),
    )
    rows = zip(json.loads(rest), advantages, lengths, strict=True)
    scores = zip(sums, counts, strict=True)
    return MicroStep(
        pack=pack,
        shares=tuple(_share(*row) for row in rows),
        num_executions=executions,
        scores=None
        if kind_of(header) == HeaderKind.SCORE
        else tuple(Score(sum_log_ratio=one, count=count) for one, count in scores),
    )


def _names(work: MicroStep) -> bytes:
    return json.dumps([[one.execution, one.trajectory] for one in work.shares]).encode()


def _share(name: tuple[str, int | None], advantage: float, num_targets: int) -> Share:
    execution, trajectory = name
    return Share(
        execution=ExecutionId(execution),
        advantage=advantage,
        num_targets=num_targets,
        trajectory=None if trajectory is None else CallId(trajectory),
    )


_MEASURES = tuple(one.name for one in fields(Measures))
_COUNTS = tuple(name for name in _MEASURES if name.startswith("num_"))
_NUM_FIXED = 2 + len(_MEASURES)


def num_report(work: MicroStep) -> int:
    """Numbers that tell what a micro-step came to."""
    return _NUM_FIXED + 2 * len(work.shares)


def report(outcome: MicroStepResult | str, work: MicroStep) -> Tensor:
    """A result in float64, in which counts are exact, or the length of a failure's text."""
    if isinstance(outcome, str):
        numbers = [float(len(outcome.encode()))] + [0.0] * (num_report(work) - 1)
        return torch.tensor(numbers, dtype=torch.float64)
    measures = [float(getattr(outcome.measures, name) or 0.0) for name in _MEASURES]
    scores = [x for one in outcome.scores for x in (one.sum_log_ratio, float(one.count))]
    return torch.tensor([0.0, outcome.loss or 0.0, *measures, *scores], dtype=torch.float64)


def num_failure(report: Tensor) -> int:
    """Bytes of the failure's text, which follows; 0 where there is a result."""
    return int(report[0])


def result_from(report: Tensor, work: MicroStep) -> MicroStepResult:
    """The result that another rank told in numbers."""
    _, loss, *rest = report.tolist()
    measures = dict(zip(_MEASURES, rest, strict=False))
    sums, counts = rest[len(_MEASURES) :: 2], rest[len(_MEASURES) + 1 :: 2]
    return MicroStepResult(
        work=work,
        scores=tuple(
            Score(sum_log_ratio=one, count=int(count))
            for one, count in zip(sums, counts, strict=True)
        ),
        loss=None if work.scores is None else loss,
        measures=Measures(
            **{name: int(measures[name]) for name in _COUNTS},
            sum_ratio=measures["sum_ratio"],
            max_gap=measures["max_gap"] if measures["num_targets"] else None,
        ),
    )


def text_of(failure: str) -> Tensor:
    return torch.frombuffer(bytearray(failure.encode()), dtype=torch.uint8)


def failure_from(text: Tensor) -> str:
    return text.numpy().tobytes().decode()
