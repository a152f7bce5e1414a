"""TrainingWorker over several ranks."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from gyre.cell.checkpoint import CheckpointWriter, CopyCost, WrittenState, planned_network
from gyre.cell.protocol import (
    BroadcastRequest,
    ExposedWeights,
    FormGroupsRequest,
    ReduceRequest,
    SavedCheckpoint,
    StepRequest,
)
from gyre.cell.ranks import protocol
from gyre.cell.ranks.driver import ClaimResult, Driver, PendingClaim
from gyre.cell.ranks.main import open_part
from gyre.cell.ranks.rank_group import RankGroup, RankProcess
from gyre.cell.ranks.worker import read_shard
from gyre.cell.spec import CellSpec
from gyre.cell.training_worker import Leases, check_held, check_version
from gyre.model.checkpoint import Named
from gyre.model.network import Network
from gyre.storage.files import write_plan
from gyre.trainer.logprobs import CUDA_MULTIPLE_TOKENS, check_claim
from gyre.trainer.trainer import BACKWARD
from gyre.types.errors import CellError, CellGone, CheckpointError, ExposureGone, NotFinite
from gyre.types.training import Claim, ClaimReport, Score, StepReport, Work


class GatheredCopies:
    """Copies of all ranks' state, asked for beside the thread that drives the ranks."""

    def __init__(self, rank_group: RankGroup, network: Network, *, share: Path) -> None:
        """The network is whole, and tells how parts of its weights were cut."""
        self._rank_group = rank_group
        self._shapes = {name: one.shape for name, one in network.module.named_parameters()}
        self._share = share
        self._copied_s = 0.0

    def copy(self, version: int, *, weights_only: bool) -> None:
        """All of it, whichever is asked for: parts of weights are laid from whole copies."""
        answers = self._rank_group.all(protocol.CopyCommand(version=version))
        self._copied_s = max(answer.copied_s for answer in answers)

    def weights(self) -> Callable[[], Named]:
        parts = []
        for answer in self._rank_group.all(protocol.WriteShardCommand(), for_ever=True):
            assert answer.part is not None
            parts.append(read_shard(self._share, answer.part))
            with suppress(FileNotFoundError):
                (self._share / answer.part.file).unlink()
        named = sorted(joined(parts, self._shapes).items())
        return lambda: named

    def write(self, folder: Path) -> WrittenState:
        answers = self._rank_group.all(
            protocol.WriteOptimizerCommand(folder=str(folder)), for_ever=True
        )
        return WrittenState(
            num_steps=answers[0].num_steps, ranks=tuple(answer.files for answer in answers)
        )

    def cost(self) -> CopyCost:
        return CopyCost(stalled_s=self._rank_group.part.snapshot.stalled_s, copied_s=self._copied_s)


def joined(
    parts: Sequence[Mapping[str, Tensor]], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """The weights of a whole model, from those of its ranks in their order.

    What several ranks hold in full is taken from the first, and what the model knows by another
    name, as the last stage its tied head, from the stage that has it under its own.
    """
    return {name: _whole(name, parts, shape) for name, shape in shapes.items()}


def _whole(name: str, parts: Sequence[Mapping[str, Tensor]], shape: torch.Size) -> Tensor:
    held = [part[name] for part in parts if name in part]
    if held and held[0].shape == shape:
        return held[0]
    if held and held[0].dim() == len(shape):
        cut = [dim for dim, size in enumerate(held[0].shape) if size != shape[dim]]
        whole = torch.cat(held, cut[0]) if len(cut) == 1 else None
        if whole is not None and whole.shape == shape:
            return whole
    found = [tuple(tensor.shape) for tensor in held]
    message = f"{name}: expected parts of shape {tuple(shape)}, found {found}"
    raise CheckpointError(message, retryable=False)


SIGNS_OF_LIFE = 4
"""Times that a paused stream says so within the time-out of the cell's lines."""
FAR = ("-m", "gyre.cluster.node_agent")
PATIENCE = 4
"""Time-outs of lines after which a rank that has not answered an order never will."""


class MultiRankWorker:
    """The training half of a cell of several ranks: a driver thread and the rank group."""

    shares_network = False

    def __init__(
        self,
        plan: CellSpec,
        rank_group: RankGroup,
        network: Network,
    ) -> None:
        """`network` is the engine's, whole."""
        self.claims_at_once = plan.stages + 1
        self._plan = plan
        self._rank_group = rank_group
        self._trainer = rank_group.part.trainer
        self._network = network
        life_s = plan.timeout_s / SIGNS_OF_LIFE
        self._driver = Driver(rank_group, plan.objective, life_s=life_s)
        self.lost = self._driver.lost
        """Done once the cell is lost."""
        copies = GatheredCopies(rank_group, network, share=plan.share)
        self._saving = CheckpointWriter(copies, network, stages=plan.stages, shards=plan.shards)
        self._exposing = Lock()
        self._exposed: ExposedWeights | None = None

    @property
    def version(self) -> int:
        return self._trainer.version

    @property
    def failure(self) -> CellError | None:
        return self._driver.failure

    def ended(self, what: str) -> None:
        """Another rank's process is gone."""
        self._driver.fail(CellGone(what))

    def reload(self) -> None:
        def act() -> None:
            try:
                self._rank_group.all(protocol.ReloadCommand())
            except CellGone:
                raise
            except CellError:
                self._rank_group.surely(protocol.OffloadCommand())
                raise

        self._driver.do(act)

    def offload(self) -> None:
        self._driver.do(lambda: self._rank_group.surely(protocol.OffloadCommand()))

    def clear(self) -> None:
        def act() -> None:
            self._rank_group.surely(protocol.ClearCommand())
            self._driver.held.clear()

        self._driver.do(act)

    def score(self, claim: Claim) -> tuple[Score, ...]:
        one = PendingClaim(claim=claim, num_executions=1, lease=None, scores=None)
        return self._claimed(one).scores

    def train(
        self, claim: Claim, *, lease: int, num_executions: int, scores: Sequence[Score] | None
    ) -> ClaimReport:
        """The last stage is through with it; its gradient is where the next order finds it."""
        given = None if scores is None else tuple(scores)
        if given is not None and len(given) != len(claim.shares):
            counts = f"{len(given)} scores for {len(claim.shares)} shares"
            raise CellError(f"lease {lease}: expected as many, found {counts}", retryable=False)
        found = self._claimed(
            PendingClaim(claim=claim, num_executions=num_executions, lease=lease, scores=given)
        )
        return ClaimReport(
            loss=found.loss,
            scores=found.scores,
            measures=found.measures,
            work=self._work_of(claim, found),
        )

    def form_groups(self, epoch: int, order: Sequence[int]) -> None:
        asked = FormGroupsRequest(epoch=epoch, order=list(order))
        self._driver.do(lambda: self._rank_group.all(asked))

    def reduce(self, epoch: int, members: Sequence[int], leases: Leases) -> int:
        def act() -> int:
            check_held(self._plan.cell, self._driver.held, leases)
            held = {cell: list(one) for cell, one in leases.items()}
            asked = ReduceRequest(epoch=epoch, members=list(members), leases=held)
            answers = self._rank_group.agreed(asked)
            if members[0] == self._plan.cell:
                self._driver.held.update(lease for held in leases.values() for lease in held)
            return sum(answer.num_bytes for answer in answers)

        return self._driver.do(act)

    def step(self, version: int) -> StepReport:
        """On all ranks or on none."""

        def act() -> StepReport:
            check_version(self.version, version)
            if self._plan.optimizer is None:
                raise CellError("this cell has no optimizer: the core's has", retryable=False)
            answers = self._rank_group.surely(StepRequest(version=version), but=(NotFinite,))
            self._driver.held.clear()
            assert answers[0].report is not None
            return answers[0].report

        return self._driver.do(act)

    def broadcast_weights(self, epoch: int, members: Sequence[int], version: int) -> None:
        def act() -> None:
            self._rank_group.agreed(
                BroadcastRequest(epoch=epoch, members=list(members), version=version)
            )
            if members[0] != self._plan.cell:
                self._driver.held.clear()

        self._driver.do(act)

    def expose(self) -> ExposedWeights:
        """Every rank's weights for others to read; beside the thread that drives (SPEC 3.1)."""
        with self._exposing:
            version = self.version
            if self._exposed is None or self._exposed.version != version:
                answers = self._rank_group.all(protocol.ExposeCommand())
                if {version} != {answer.version for answer in answers}:
                    raise ExposureGone("the weights changed while they were exposed")
                parts = tuple(answer.bundle for answer in answers if answer.bundle is not None)
                self._exposed = ExposedWeights(version=version, parts=parts)
            return self._exposed

    def pull(self, given: ExposedWeights) -> None:
        def act() -> None:
            if self._trainer.is_resting:
                raise CellError("the trainer rests: restore it first")
            self._rank_group.agreed(protocol.PullCommand(given=given))
            self._driver.held.clear()

        self._driver.do(act)

    def save(self, folder: Path, version: int | None) -> SavedCheckpoint:
        return self._saving.save(folder, self.version if version is None else version)

    def checkpoint(self, folder: Path, version: int | None) -> SavedCheckpoint:
        return self._saving.checkpoint(folder, self.version if version is None else version)

    def drop(self) -> None:
        """The other ranks have ended, and no call waits for this one."""
        self._driver.end()

    def _claimed(self, one: PendingClaim) -> ClaimResult:
        check_claim(one.claim, self._trainer.network)
        return self._driver.claimed(one)

    def _work_of(self, claim: Claim, found: ClaimResult) -> Work:
        shape, packs = self._network.shape, claim.packs
        multiple = CUDA_MULTIPLE_TOKENS if self._network.device.type == "cuda" else 1
        flops = [
            shape.forward_flops(pack.num_tokens, pack.num_targets, pack.num_pairs) for pack in packs
        ]
        return Work(
            num_packs=len(packs),
            num_skipped=found.num_skipped,
            num_tokens=sum(pack.num_tokens for pack in packs),
            num_padding=sum(-pack.num_tokens % multiple for pack in packs),
            num_targets=sum(pack.num_targets for pack in packs),
            model_flops=sum(flops) * (1 + BACKWARD),
            # Passes of both kinds overlap over the stages, so all of the time stands here.
            forward_s=found.seconds,
            backward_s=0.0,
        )


def open_ranked(plan: CellSpec, network: Network) -> MultiRankWorker:
    """All ranks are there; a failure on the way ends those that were."""
    folder = Path(tempfile.mkdtemp(prefix=f"{plan.name}-", dir=plan.share))
    path = write_plan(folder / "plan.json", plan)
    store = folder / "store"
    with ExitStack() as stack:
        followers = []
        for rank in range(1, plan.ranks):
            far = (
                ()
                if (node_agent := plan.node_agent_of(rank)) is None
                else (*FAR, node_agent, str(plan.key_file))
            )
            follower = RankProcess(path, rank, store, through=far)
            stack.callback(follower.end)
            followers.append(follower)
        own = planned_network(plan)
        for follower in followers:
            follower.ready.result()
        part = open_part(plan, 0, store, own)
        rank_group = RankGroup(part, followers, patience_s=PATIENCE * plan.timeout_s)
        ranked = MultiRankWorker(plan, rank_group, network)
        stack.pop_all()
    for follower in followers:
        follower.ended.add_done_callback(lambda ended: ranked.ended(ended.result()))
    return ranked
