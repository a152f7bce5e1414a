"""Trainer on one device: score, train, step, offload, reload; FLOP meter."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import fsum, isfinite
from threading import Lock
from time import perf_counter

import torch
from torch import Tensor

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import ModelDims, Network
from gyre.model.packed_batch import PackedBatch
from gyre.model.weights import load_into
from gyre.trainer.activation_checkpointing import recompute_for
from gyre.trainer.gradients import GradientSums
from gyre.trainer.logprobs import check_claim, on_device, target_logprobs
from gyre.trainer.loss import LossResult, add_scores, log_ratio_sums, loss_and_gradient, total
from gyre.trainer.offload import Offloadable, OffloadableWeights, oom_guard, release, synchronize
from gyre.trainer.optimizer import Adam, OptimizerState, norm
from gyre.types.errors import CellError, NotFinite, OutOfMemory
from gyre.types.training import Claim, ClaimReport, Score, StepReport, Work

BACKWARD = 2.0
"""A backward pass multiplies each matrix twice where the forward pass does once."""


class WorkMeter:
    """Counts operations and seconds; the time between two passes counts for the later one."""

    def __init__(self, shape: ModelDims) -> None:
        self._shape = shape
        self._since = perf_counter()
        self._forward_s = self._backward_s = 0.0
        self._flops = 0.0
        self._forwards: list[PackedBatch] = []
        self._num_backwards = 0

    def forward_done(self, packed: PackedBatch) -> None:
        self._forward_s += self._interval()
        self._flops += self._forward_flops(packed)
        self._forwards.append(packed)

    def backward_done(self, packed: PackedBatch) -> None:
        self._backward_s += self._interval()
        self._flops += BACKWARD * self._forward_flops(packed)
        self._num_backwards += 1

    def work(self) -> Work:
        packs = self._forwards
        return Work(
            num_packs=len(packs),
            num_skipped=len(packs) - self._num_backwards,
            num_tokens=sum(one.pack.num_tokens for one in packs),
            num_padding=sum(one.num_padding for one in packs),
            num_targets=sum(one.num_targets for one in packs),
            model_flops=self._flops,
            forward_s=self._forward_s,
            backward_s=self._backward_s,
        )

    def _forward_flops(self, packed: PackedBatch) -> float:
        pack = packed.pack
        return self._shape.forward_flops(pack.num_tokens, pack.num_targets, pack.num_pairs)

    def _interval(self) -> float:
        synchronize()
        now = perf_counter()
        since, self._since = self._since, now
        return now - since


class DeterministicMode:
    """Torch's mode of kernels that give the same bits each time, which is the whole process's.

    The first thread that asks for it turns it on, and the last one restores what was before.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_asking = 0
        self._before = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        with self._lock:
            if self._num_asking == 0:
                self._before = torch.get_deterministic_debug_mode()
                # Without it CUDA's matrix products are refused; it must stand before their first.
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
                torch.use_deterministic_algorithms(True)
            self._num_asking += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_asking -= 1
                if self._num_asking == 0:
                    torch.set_deterministic_debug_mode(self._before)


_DETERMINISTIC = DeterministicMode()


def arithmetic(*, deterministic: bool) -> AbstractContextManager[None]:
    """Kernels that give the same bits each time, where they are asked for."""
    return _DETERMINISTIC.on() if deterministic else nullcontext()


class BaseTrainer:
    """What trainers of one device and of one rank share: the sum of a batch, step, memory.

    Rule 1: a step that is refused changes nothing (SPEC 3.3).
    Rule 2: what rests is not computed with, and comes back as it was.
    """

    def __init__(
        self,
        network: Network,
        weights: OffloadableWeights,
        *,
        section: TrainerConfig,
        optimizer: OptimizerConfig | None,
        version: int,
    ) -> None:
        """Without an optimizer it is a satellite's: it sums, and the core steps (SPEC 3.1)."""
        self.network = network
        self.version = version
        self._section = section
        parameters = dict(network.module.named_parameters())
        self._weights = weights
        self._sums = GradientSums(parameters, exact=section.deterministic)
        self._adam = None if optimizer is None else Adam(parameters, optimizer)

    def step(self) -> StepReport:
        """The sum is clipped and applied, and is zero again; NotFinite leaves all as it was."""
        adam = self._core()
        began = perf_counter()
        found = oom_guard("a step", self._norm)
        if not isfinite(found):
            message = f"step from version {self.version}: the norm of the gradient is {found}"
            raise NotFinite(message, retryable=False)
        limit = adam.section.max_norm
        scale = limit / found if found > limit else 1.0
        oom_guard("a step", lambda: adam.step(self._sums.floats(), scale=scale))
        self._sums.clear()
        self.version += 1
        return StepReport(
            version=self.version,
            gradient_norm=found,
            is_clipped=found > limit,
            lr=adam.section.lr,
            step_s=perf_counter() - began,
        )

    def clear(self) -> None:
        """Forgets the claims of this batch, whose work then returns to the queue."""
        self._sums.clear()

    @property
    def gradients(self) -> list[Tensor]:
        """The sum as flat buckets, the same in every cell of one model; not a copy.

        In deterministic mode whole numbers, which any reduction sums to the same (SPEC 3.6).
        """
        return self._sums.flats

    @property
    def gradient_views(self) -> Mapping[str, Tensor]:
        """The sum by parameter; not a copy."""
        return self._sums.views

    def replace_gradients(self, buckets: Sequence[Tensor]) -> None:
        """The sum is this one, which was reduced elsewhere; refused whole or taken whole."""
        self._sums.replace(buckets)

    def load_weights(self, tensors: Mapping[str, Tensor], *, version: int) -> None:
        """Weights of another version, of a whole model, take the place of these.

        Moments stay as they are.
        """
        self._require_awake()
        held = self._load(tensors)
        if self._adam is not None:
            self._adam.read(held)
        self.version = version

    @property
    def has_optimizer(self) -> bool:
        return self._adam is not None

    def export(self) -> OptimizerState:
        """What a checkpoint must hold for the next step to be the same; not a copy."""
        return self._core().export()

    def load(self, state: OptimizerState, *, version: int) -> None:
        """Goes on from what a trainer of this place and layout has exported, weights included."""
        self._core().load(state)
        self._sums.clear()
        self.version = version

    @property
    def is_resting(self) -> bool:
        return self._sums.is_resting

    def offload(self, *, weights: bool = False) -> None:
        """Sums and optimizer state, on request weights too, leave the device for host memory."""
        for one in self._parts(weights=weights):
            one.offload()
        # Copies run behind the host, which must not read them before they are there.
        synchronize()
        release()

    def reload(self) -> None:
        """Everything is back on the device; OutOfMemory leaves it resting, to be tried again."""
        were_away = self._weights.is_resting
        try:
            oom_guard("restoring a trainer", self._reload)
        except OutOfMemory:
            self.offload(weights=were_away)
            raise

    def _norm(self) -> float:
        """Of the sum of all that the step changes."""
        return norm(self._sums.floats())

    def _load(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The network has its part of a whole model's weights, all of it or none; the part."""
        load_into(self.network, tensors)
        return tensors

    def _core(self) -> Adam:
        """The optimizer, which only the core has (SPEC 3.1)."""
        if self._adam is None:
            raise CellError("this trainer has no optimizer: the core's has", retryable=False)
        return self._adam

    def _require_awake(self) -> None:
        if self.is_resting:
            raise CellError("the trainer rests: restore it first")

    def _reload(self) -> None:
        for one in self._parts(weights=True):
            one.reload()

    def _parts(self, *, weights: bool) -> list[Offloadable]:
        state: list[Offloadable] = [self._sums, *([] if self._adam is None else [self._adam])]
        return [*state, self._weights] if weights else state


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBatch:
    """A claim, what is known of its executions, and the size of the batch it belongs to."""

    claim: Claim
    scores: tuple[Score, ...]
    num_executions: int


class Trainer(BaseTrainer):
    """A trainer on one device.

    Rule 1: a claim counts whole or not at all; an error leaves the sum as it was (SPEC 3.2).
    """

    def __init__(
        self,
        network: Network,
        *,
        section: TrainerConfig,
        objective: LossConfig,
        optimizer: OptimizerConfig | None,
        temperature: float = 1.0,
        version: int = 0,
    ) -> None:
        """`temperature` is that of the rollouts, so that ratios compare like with like."""
        super().__init__(
            network,
            OffloadableWeights(network),
            section=section,
            optimizer=optimizer,
            version=version,
        )
        self.recompute = recompute_for(network, checkpoint=section.checkpoint)
        self._objective = objective
        self._temperature = temperature

    def score(self, claim: Claim) -> tuple[Score, ...]:
        """Sum of log rho per share, by forward passes alone (SPEC 8.3)."""
        self._require_awake()
        check_claim(claim, self.network)
        with arithmetic(deterministic=self._section.deterministic), torch.no_grad():
            return oom_guard("scoring a claim", lambda: self._score(claim))

    def train(
        self, claim: Claim, *, num_executions: int, scores: Sequence[Score] | None = None
    ) -> ClaimReport:
        """Adds the claim's gradient; `num_executions` is B*N of the batch.

        Scores that are given stand for the claim's own; then, as for a claim over its budget, one
        pack at a time is held, and otherwise all of them are until the claim's ratios are known.
        """
        self._require_awake()
        check_claim(claim, self.network)
        if scores is None and claim.oversize:
            scores = self.score(claim)

        def work() -> ClaimReport:
            with self._sums.claim():
                return self._train(claim, num_executions, scores)

        with arithmetic(deterministic=self._section.deterministic):
            return oom_guard("training on a claim", work)

    def add_gradients(self, buckets: Sequence[Tensor]) -> None:
        """Adds the sum of another cell."""
        self._sums.add(buckets)

    def rewrite(self) -> None:
        """The network's weights are the optimizer's again, after others were loaded into it."""
        if self._adam is not None:
            self._adam.write_parameters()

    def _score(self, claim: Claim) -> tuple[Score, ...]:
        found = []
        for pack in claim.packs:
            made = on_device(pack, self.network.device)
            found.append(_scores(made, self.forward(made), claim))
        return add_scores(found)

    def forward(self, made: PackedBatch) -> Tensor:
        """Log-probabilities of a pack's targets, with a graph while gradients are enabled."""
        return target_logprobs(
            self.network,
            made,
            recompute=self.recompute,
            logits_tokens=self._section.logits_tokens,
            temperature=self._temperature,
        )

    def _train(
        self, claim: Claim, num_executions: int, scores: Sequence[Score] | None
    ) -> ClaimReport:
        meter = WorkMeter(self.network.shape)
        packs = [on_device(pack, self.network.device) for pack in claim.packs]
        # All graphs are held until the ratios are known, so a claim's budget bounds memory.
        held: list[Tensor] = []
        if scores is None:
            held = [self.forward(made) for made in packs]
            scores = add_scores([_scores(*one, claim) for one in zip(packs, held, strict=True)])
        held.reverse()
        batch = ClaimBatch(claim=claim, scores=tuple(scores), num_executions=num_executions)
        weighed = [self._back(made, held, batch, meter) for made in packs]
        return ClaimReport(
            loss=fsum(one.loss for one in weighed),
            scores=batch.scores,
            measures=total(one.measures for one in weighed),
            work=meter.work(),
        )

    def _back(
        self, made: PackedBatch, held: list[Tensor], batch: ClaimBatch, meter: WorkMeter
    ) -> LossResult:
        """One pack's gradient is in the sum, and its graph is gone; `held` has the next last."""
        logprobs = held.pop() if held else self.forward(made)
        found = loss_and_gradient(
            logprobs,
            made.behaviour,
            made.shares,
            shares=batch.claim.shares,
            scores=batch.scores,
            num_executions=batch.num_executions,
            section=self._objective,
        )
        meter.forward_done(made)
        if found.has_gradient:
            logprobs.backward(found.gradient)  # type: ignore[no-untyped-call]
            meter.backward_done(made)
        return found


def _scores(made: PackedBatch, logprobs: Tensor, claim: Claim) -> tuple[Score, ...]:
    return log_ratio_sums(logprobs, made.behaviour, made.shares, claim.shares)
