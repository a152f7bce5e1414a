"""Trainer weights exposed to other cells, and taken from them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import EllipsisType

import torch
from torch import Tensor

from gyre.cell.protocol import ExposedWeights
from gyre.model.cuda_ipc import IpcExport, IpcMemory, read
from gyre.model.weights import SafetensorsFolder
from gyre.trainer.offload import oom_guard
from gyre.trainer.protocol import CellTrainer
from gyre.transports.tensor_layout import TensorSlice
from gyre.transports.tensor_transfer import TensorBytes, expose, fetch, read_sheet_of
from gyre.types.errors import ExposureGone, ModelError, TransferError
from gyre.types.protocols import TensorBundle, Transport

Cuts = Mapping[str, tuple[str, TensorSlice]]
"""By a rank's name for a tensor: the model's name for it, and the part of it that the rank has."""
Shapes = Mapping[str, Sequence[int]]
TIED = {"lm_head.weight": "model.embed_tokens.weight"}
"""What the last stage of a model holds under another name than the first."""
LANES = 8
"""Threads that copy and hash weights together: one alone is far slower than memory is."""
SPLIT_VALUES = 2**16
"""Tensors of at least so many are shared out by their rows among all lanes."""


def whole_cuts(shapes: Shapes) -> Cuts:
    """The cuts of a rank that has all of a model."""
    return {name: (name, TensorSlice.all_of(shape)) for name, shape in shapes.items()}


def cuts_of(own: Shapes, whole: Shapes, *, shard: int) -> Cuts:
    """Of a rank that holds these tensors of a model, each in full or one of equal parts."""
    found = {}
    for name, shape in own.items():
        model_name = name if name in whole else TIED.get(name, name)
        cut = None
        if model_name in whole:
            cut = TensorSlice.part_of(whole[model_name], shape, shard)
        if cut is None:
            message = f"{name}: expected part {shard} of a tensor, found {tuple(shape)}"
            raise ModelError(message)
        found[name] = (model_name, cut)
    return found


def shapes_of(module: torch.nn.Module) -> Shapes:
    return {name: tuple(one.shape) for name, one in module.named_parameters()}


def exposed(
    transport: Transport, tensors: Mapping[str, Tensor], cuts: Cuts, *, version: int
) -> TensorBundle:
    """Others can have these tensors, as they are now, until the bundle is withdrawn."""
    parts = {}
    for name, (model_name, cut) in cuts.items():
        held = tensors[name].detach().to("cpu").contiguous()
        parts[model_name] = TensorBytes(
            dtype=str(held.dtype).removeprefix("torch."),
            cut=cut,
            data=held.reshape(-1).view(torch.uint8).numpy(),
        )
    return expose(transport, parts, version=version)


def exposed_in_lanes(
    transport: Transport, tensors: Mapping[str, Tensor], cuts: Cuts, *, version: int
) -> tuple[TensorBundle, ...]:
    """The same in several bundles, all made at once; they are there together, or none of them."""

    def lane(boxes: Mapping[str, "_Box"]) -> TensorBundle:
        parts = {name: tensors[name][one.rows] for name, one in boxes.items()}
        wanted = {name: (one.name, one.cut) for name, one in boxes.items()}
        return exposed(transport, parts, wanted, version=version)

    with ThreadPoolExecutor(LANES) as threads:
        made = [threads.submit(lane, boxes) for boxes in _lanes(cuts)]
    whole = [one.result() for one in made if one.exception() is None]
    if len(whole) < len(made):
        withdraw(transport, whole)
    return tuple(one.result() for one in made)


def withdraw(transport: Transport, parts: Sequence[TensorBundle]) -> None:
    """No cell can read these any more."""
    for one in parts:
        transport.withdraw(one.exposure)


def fetched(
    transport: Transport,
    given: Sequence[TensorBundle],
    cuts: Cuts,
    *,
    version: int,
    device: torch.device | None = None,
) -> dict[str, Tensor]:
    """This rank's tensors of that version, from the ranks that hold parts of them.

    They are on the device that is named, and else in main memory.
    """
    for one in given:
        if one.version != version:
            message = f"expected version {version}, found {one.version}"
            raise TransferError(message, retryable=False)
    made = _room(transport, given, cuts, device)

    def lane(boxes: Mapping[str, "_Box"]) -> None:
        wanted = {name: (one.name, one.cut) for name, one in boxes.items()}
        for name, part in fetch(transport, given, wanted).items():
            made[name][boxes[name].rows].copy_(_tensor(part))

    with ThreadPoolExecutor(LANES) as threads:
        doing = [threads.submit(lane, boxes) for boxes in _lanes(cuts)]
    for lane_done in doing:
        lane_done.result()
    return made


@dataclass(frozen=True, slots=True)
class _Box:
    """What a lane has of a tensor."""

    name: str
    """The model's."""
    cut: TensorSlice
    rows: slice | EllipsisType
    """Of the rank's own tensor; an ellipsis takes all of them."""


def _lanes(cuts: Cuts) -> list[dict[str, _Box]]:
    """For each lane its boxes; all of them together are the cuts."""
    lanes: list[dict[str, _Box]] = [{} for _ in range(LANES)]
    for number, (name, (model_name, cut)) in enumerate(cuts.items()):
        count = cut.shape[0] if cut.shape else 0
        if cut.num_values < SPLIT_VALUES or count < LANES:
            lanes[number % LANES][name] = _Box(model_name, cut, ...)
            continue
        for at, lane in enumerate(lanes):
            rows = slice(count * at // LANES, count * (at + 1) // LANES)
            box = TensorSlice(
                whole=cut.whole,
                start=(cut.start[0] + rows.start, *cut.start[1:]),
                shape=(rows.stop - rows.start, *cut.shape[1:]),
            )
            lane[name] = _Box(model_name, box, rows)
    return [lane for lane in lanes if lane]


def _room(
    transport: Transport, given: Sequence[TensorBundle], cuts: Cuts, device: torch.device | None
) -> dict[str, Tensor]:
    """Empty tensors in the types that their holders say; none for what no rank holds."""
    sheets = [read_sheet_of(transport, one) for one in given]
    types = {name: laid.dtype for sheet in sheets for name, laid in sheet.tensors.items()}
    return {
        name: torch.empty(cut.shape, dtype=getattr(torch, types[model_name]), device=device)
        for name, (model_name, cut) in cuts.items()
        if model_name in types
    }


def _tensor(part: TensorBytes) -> Tensor:
    flat = torch.from_numpy(part.data).view(getattr(torch, part.dtype))
    return flat.reshape(part.cut.shape)


class CheckpointPublisher:
    """Exposes the weights of one checkpoint at a time; the one before it is withdrawn."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = Lock()
        self._folder: Path | None = None
        self._exposed: ExposedWeights | None = None

    def offered(self, folder: Path, version: int) -> ExposedWeights:
        """The weights of a checkpoint; read and verified when they are asked for first."""
        with self._lock:
            before = self._exposed
            if before is not None and (folder, version) == (self._folder, before.version):
                return before
            self._exposed = None
            if before is not None:
                withdraw(self._transport, before.parts)
            with SafetensorsFolder(folder) as stored:
                tensors = {name: stored.get(name) for name in stored.shapes}
                cuts = whole_cuts(stored.shapes)
                parts = exposed_in_lanes(self._transport, tensors, cuts, version=version)
            self._folder = folder
            self._exposed = ExposedWeights(version=version, parts=parts)
            return self._exposed


class WeightPublisher:
    """Exposes the trainer's weights, one version at a time, in main memory or on a lent device."""

    def __init__(
        self, trainer: CellTrainer, transport: Transport, memory: IpcMemory | None
    ) -> None:
        self._trainer = trainer
        self._transport = transport
        self._memory = memory
        self._cuts = whole_cuts(shapes_of(trainer.network.module))
        self._lock = Lock()
        self._exposed: ExposedWeights | None = None
        self._loan: IpcExport | None = None
        self._is_resting = trainer.is_resting
        """From before the trainer rests until it has its memory again: it lends nothing then."""

    def expose(self) -> ExposedWeights:
        """The weights as they are; the version before is withdrawn."""
        with self._lock:
            version, before = self._trainer.version, self._exposed
            if self._is_resting and self._memory is not None:
                # The network is the engine's now, and the trainer's version is not in it.
                raise ExposureGone("the trainer rests: its weights are not on the device")
            if before is not None and before.version == version:
                return before
            self._withdraw()
            made = self._made(version)
            self._exposed = made
            if self._trainer.version != version:
                self._withdraw()
                raise ExposureGone("the weights changed while they were exposed")
            return made

    def offload(self) -> None:
        """Ends the loan of device memory; no cell takes weights of a trainer that rests."""
        with self._lock:
            self._is_resting = True
            self._end_loan()

    def reload(self) -> None:
        """The network is the trainer's again."""
        with self._lock:
            self._is_resting = False

    def changed(self) -> None:
        """The weights are of another version; a copy of the old on the device is of no use."""
        with self._lock:
            self._end_loan()

    def taken(self, given: ExposedWeights) -> Mapping[str, Tensor]:
        """Those of another cell, on the device, where they are checked in no time."""
        network = self._trainer.network
        if given.lent is None:
            return fetched(
                self._transport,
                given.parts,
                self._cuts,
                version=given.version,
                device=network.device,
            )
        if self._memory is None:
            message = "expected weights in main memory, found them on a device"
            raise TransferError(message, retryable=False)
        made = {name: torch.empty_like(one) for name, one in self._named()}
        read(self._memory, given.lent, list(made.values()))
        return made

    def _made(self, version: int) -> ExposedWeights:
        memory = self._memory
        if memory is None:
            tensors = dict(self._named())
            parts = exposed_in_lanes(self._transport, tensors, self._cuts, version=version)
            return ExposedWeights(version=version, parts=parts)
        loan = oom_guard(
            "lending weights", lambda: memory.lend([one.clone() for _, one in self._named()])
        )
        self._loan = loan
        return ExposedWeights(version=version, lent=loan.lent)

    def _named(self) -> list[tuple[str, Tensor]]:
        return sorted(
            (name, one.detach()) for name, one in self._trainer.network.module.named_parameters()
        )

    def _end_loan(self) -> None:
        if self._loan is not None:
            self._withdraw()

    def _withdraw(self) -> None:
        before, self._exposed = self._exposed, None
        loan, self._loan = self._loan, None
        if loan is not None:
            loan.end()
        if before is not None:
            withdraw(self._transport, before.parts)
