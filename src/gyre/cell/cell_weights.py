"""Weights as cells give them to each other: each rank exposes its part and takes what it needs."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import EllipsisType

import torch
from torch import Tensor

from gyre.transports.cuts import TensorSlice
from gyre.transports.moving import TensorBytes, expose, fetch, read_sheet_of
from gyre.types.errors import ModelError, TransferError
from gyre.types.ports import Transport
from gyre.types.transfers import TensorBundle

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
    """Of somebody who has all of a model."""
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
    """Nobody can have these any more."""
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
    """This rank's tensors of that version, from whoever holds which part of them.

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
    """Empty tensors in the types that their holders say; of what nobody holds there is none."""
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
