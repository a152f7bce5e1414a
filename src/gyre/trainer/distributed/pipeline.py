"""1F1B pipeline over a stream of micro-steps.

Micro-steps stream through the stages of a cell, forward and back (SPEC 3.5).

Rule 1: the driver, rank 0, tells every rank what comes next; all act on the same headers.
Rule 2: a pause leaves what is in flight where it is; closing brings it back, once per batch.
Rule 3: what one micro-step came to reaches the driver, whether it is a result or a failure.
"""

import json
from collections import deque
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre.config.sections import LossConfig
from gyre.model.packed_batch import PackedBatch, check
from gyre.trainer.distributed.pipeline_schedule import (
    BackwardAction,
    ForwardAction,
    HeaderKind,
    Schedule,
)
from gyre.trainer.distributed.pipeline_stage import PipelineStage, StageActivations
from gyre.trainer.distributed.rank_comm import RankComm
from gyre.trainer.logprobs import on_device
from gyre.trainer.loss import Measures, log_ratio_sums, loss_and_gradient, sum_of_ratios
from gyre.types.errors import CellError, InternalError, NotFinite
from gyre.types.ids import CallId, ExecutionId
from gyre.types.training import Pack, Score, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """One micro-step for all ranks of a cell."""

    pack: Pack
    shares: tuple[Share, ...]
    """Those of the claim, in the order that the pack's targets refer to."""
    num_executions: int
    """B*N, executions without tokens included."""
    scores: tuple[Score, ...] | None
    """Of each share over the whole claim; None asks for scores and trains nothing (SPEC 8.3)."""

    @property
    def kind(self) -> HeaderKind:
        return HeaderKind.SCORE if self.scores is None else HeaderKind.RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStepResult:
    """The scores of one micro-step, and its loss where it was trained."""

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
    """The result that another rank sent as numbers."""
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


class StreamEnd(Enum):
    """Why there is no next micro-step: none yet, or none any more."""

    PAUSED = auto()
    """There is no data; what is in flight stays."""
    CLOSED = auto()
    """The batch is done; nothing is in flight."""


class MicroStepSource(Protocol):
    """Where the driver finds micro-steps."""

    def take(self) -> MicroStep | StreamEnd:
        """The next one, or why there is none now."""
        ...

    def finished(self, result: MicroStepResult) -> None:
        """One that was taken has come to this; in the order they were taken."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    """A micro-step between its forward and its backward on this stage."""

    packed: PackedBatch
    passed: StageActivations
    gradient: Tensor | None
    """Of the log-probabilities, on the last stage; elsewhere it is yet to come."""


class Pipeline:
    """One rank's part in the pipeline's stream; the driver takes micro-steps, the others follow.

    After a CellError that is no NotFinite the cell's lines are down and it must be built anew.
    After any error, what the batch has added to gradients is to be thrown away.
    """

    def __init__(self, stage: PipelineStage, lines: RankComm, section: LossConfig) -> None:
        self._stage = stage
        self._lines = lines
        self._place = lines.place
        self._section = section
        self._schedule = Schedule(self._place.stage, self._place.stages)
        self._in_flight: dict[int, _InFlight] = {}
        self._unreported: deque[MicroStep] = deque()
        """Announced to all and not yet finished; of the driver only."""
        self._reports: deque[MicroStepResult | str] = deque()
        """Of the last stage's own, where the driver is it."""

    @property
    def in_flight(self) -> int:
        """Micro-steps whose activations this stage holds."""
        return len(self._in_flight)

    def drive(self, source: MicroStepSource) -> StreamEnd:
        """The source is exhausted for now or for this batch; every rank has stopped there.

        A pack that cannot be computed and a loss that is no number close the batch, then raise.
        While it is paused, the driver drives again within the time-out: each time it finds
        nothing, it tells the others so, and that is the sign of life they wait for.
        """
        if not self._place.is_driver:
            message = f"rank {self._place.rank} cannot drive; it follows"
            raise InternalError(message)
        with self._lines.dropped_on_failure():
            outcome = self._drive(source)
        if isinstance(outcome, CellError):
            raise outcome
        return outcome

    def follow(self) -> StreamEnd:
        """The driver has paused or closed the stream, and this rank has done its part."""
        sign = torch.empty(NUM_HEADER, dtype=torch.int64)
        with self._lines.dropped_on_failure():
            while True:
                header = self._lines.control.receive(sign.clone(), 0)
                match kind_of(header):
                    case HeaderKind.RUN | HeaderKind.SCORE:
                        payload = torch.empty(num_bytes(header), dtype=torch.uint8)
                        self._lines.control.receive(payload, 0)
                        self._act(work_from(header, payload))
                    case HeaderKind.PAUSE:
                        return StreamEnd.PAUSED
                    case HeaderKind.CLOSE:
                        self._close()
                        return StreamEnd.CLOSED

    def _drive(self, source: MicroStepSource) -> StreamEnd | CellError:
        failure: CellError | None = None
        while failure is None:
            match source.take():
                case MicroStep() as work:
                    failure = self._start(work) or self._collect(source, self._place.stages)
                case StreamEnd.PAUSED if self._unreported:
                    # A result may be what the source waits for.
                    failure = self._collect(source, len(self._unreported) - 1)
                case StreamEnd.PAUSED:
                    self._tell(header(HeaderKind.PAUSE))
                    return StreamEnd.PAUSED
                case StreamEnd.CLOSED:
                    break
        self._tell(header(HeaderKind.CLOSE))
        self._close()
        while self._unreported:
            failure = self._collect(None if failure else source, 0) or failure
        return failure or StreamEnd.CLOSED

    def _start(self, work: MicroStep) -> CellError | None:
        try:
            check(work.pack, self._stage.network.shape)
        except CellError as error:
            return error
        self._tell(header(work), payload(work))
        self._unreported.append(work)
        self._act(work)
        return None

    def _tell(self, *parts: Tensor) -> None:
        for rank in range(1, self._place.size):
            for part in parts:
                self._lines.control.send(part, rank)

    def _collect(self, source: MicroStepSource | None, most: int) -> CellError | None:
        """Results reach the source, oldest first, until `most` are outstanding or one failed.

        After a failure there is no source any more, and they are only taken off the line.
        """
        while len(self._unreported) > most:
            work = self._unreported.popleft()
            outcome = self._reports.popleft() if self._place.is_last else self._receive(work)
            if isinstance(outcome, str):
                return NotFinite(outcome)
            if source is not None:
                source.finished(outcome)
        return None

    def _receive(self, work: MicroStep) -> MicroStepResult | str:
        sender, control = self._place.reporter, self._lines.control
        room = torch.empty(num_report(work), dtype=torch.float64)
        report = control.receive(room, sender)
        if not (length := num_failure(report)):
            return result_from(report, work)
        return failure_from(control.receive(torch.empty(length, dtype=torch.uint8), sender))

    def _close(self) -> None:
        self._perform(HeaderKind.CLOSE, None)
        self._lines.settle()

    def _act(self, work: MicroStep) -> None:
        self._perform(work.kind, work)

    def _perform(self, kind: HeaderKind, work: MicroStep | None) -> None:
        for action in self._schedule.hear(kind):
            match action:
                case ForwardAction(serial, keep) if work is not None:
                    self._forward(serial, work, keep=keep)
                case ForwardAction():
                    message = f"{kind.name} asks for a forward pass of nothing"
                    raise InternalError(message)
                case BackwardAction(serial):
                    self._backward(serial)

    def _forward(self, serial: int, work: MicroStep, *, keep: bool) -> None:
        stage, place = self._stage, self._place
        made = on_device(work.pack, stage.device)
        incoming = None
        if not place.is_first:
            incoming = self._lines.ahead.receive(stage.empty_states(made), place.stage - 1)
        passed = stage.forward(made, incoming, keep=keep)
        gradient = None
        if place.is_last:
            gradient = self._weigh(work, made, passed.outgoing.detach())
        else:
            self._lines.ahead.send(passed.outgoing, place.stage + 1)
        if keep:
            self._in_flight[serial] = _InFlight(packed=made, passed=passed, gradient=gradient)

    def _backward(self, serial: int) -> None:
        stage, place = self._stage, self._place
        one = self._in_flight.pop(serial)
        gradient = one.gradient
        if gradient is None:
            gradient = self._lines.back.receive(stage.empty_states(one.packed), place.stage + 1)
        before = stage.backward(one.passed, gradient)
        if before is not None:
            self._lines.back.send(before, place.stage - 1)

    def _weigh(self, work: MicroStep, made: PackedBatch, logprobs: Tensor) -> Tensor:
        """The gradient of each log-probability; the driver gets what it comes from.

        After a failure it is zero, so that the stages before get what they wait for.
        """
        gradient = torch.zeros_like(logprobs)
        outcome: MicroStepResult | str
        try:
            scores = log_ratio_sums(logprobs, made.behaviour, made.shares, work.shares)
            loss, measures = None, _seen(work, logprobs.double().cpu())
            if work.scores is not None:
                weighed = loss_and_gradient(
                    logprobs,
                    made.behaviour,
                    made.shares,
                    shares=work.shares,
                    scores=work.scores,
                    num_executions=work.num_executions,
                    section=self._section,
                )
                gradient, loss, measures = weighed.gradient, weighed.loss, weighed.measures
            outcome = MicroStepResult(work=work, scores=scores, loss=loss, measures=measures)
        except NotFinite as error:
            outcome = str(error)
        self._report(work, outcome)
        return gradient

    def _report(self, work: MicroStep, outcome: MicroStepResult | str) -> None:
        if self._place.is_driver:
            self._reports.append(outcome)
        elif self._place.rank == self._place.reporter:
            self._lines.control.send(report(outcome, work), 0)
            if isinstance(outcome, str):
                self._lines.control.send(text_of(outcome), 0)


def _seen(work: MicroStep, logprobs: Tensor) -> Measures:
    """What a scoring pass shows before anything is known of clipping."""
    pack = work.pack
    gaps = logprobs - torch.from_numpy(pack.behaviour.astype(np.float64))
    advantages = torch.tensor([one.advantage for one in work.shares], dtype=torch.float64)
    of_target = advantages[torch.from_numpy(pack.shares.astype(np.int64))]
    return Measures(
        num_targets=pack.num_targets,
        num_capped=0,
        num_raised=int((of_target > 0).sum()),
        num_raised_clipped=0,
        num_lowered=int((of_target < 0).sum()),
        num_lowered_clipped=0,
        sum_ratio=sum_of_ratios(gaps),
        max_gap=float(gaps.abs().max()) if pack.num_targets else None,
    )
