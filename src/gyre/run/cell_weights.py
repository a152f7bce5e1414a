"""Weights as cells give them to each other: each rank exposes its part and takes what it needs."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gyre.backends.transports.cuts import Cut
from gyre.backends.transports.moving import Part, expose, fetch
from gyre.words.errors import ModelError, TransferError
from gyre.words.ports import Transport
from gyre.words.transfers import Bundle

Cuts = Mapping[str, tuple[str, Cut]]
"""By a rank's name for a tensor: the model's name for it, and the part of it that the rank has."""
Shapes = Mapping[str, Sequence[int]]
TIED = {"lm_head.weight": "model.embed_tokens.weight"}
"""What the last stage of a model holds under another name than the first."""


def whole_cuts(shapes: Shapes) -> Cuts:
    """Of somebody who has all of a model."""
    return {name: (name, Cut.all_of(shape)) for name, shape in shapes.items()}


def cuts_of(own: Shapes, whole: Shapes, *, shard: int) -> Cuts:
    """Of a rank that holds these tensors of a model, each in full or one of equal parts."""
    found = {}
    for name, shape in own.items():
        model_name = name if name in whole else TIED.get(name, name)
        cut = None
        if model_name in whole:
            cut = Cut.part_of(whole[model_name], shape, shard)
        if cut is None:
            message = f"{name}: expected part {shard} of a tensor, found {tuple(shape)}"
            raise ModelError(message)
        found[name] = (model_name, cut)
    return found


def shapes_of(module: torch.nn.Module) -> Shapes:
    return {name: tuple(one.shape) for name, one in module.named_parameters()}


def exposed(
    transport: Transport, tensors: Mapping[str, Tensor], cuts: Cuts, *, version: int
) -> Bundle:
    """Others can have these tensors, as they are now, until the bundle is withdrawn."""
    parts = {}
    for name, (model_name, cut) in cuts.items():
        held = tensors[name].detach().to("cpu").contiguous()
        parts[model_name] = Part(
            dtype=str(held.dtype).removeprefix("torch."),
            cut=cut,
            data=held.reshape(-1).view(torch.uint8).numpy(),
        )
    return expose(transport, parts, version=version)


def fetched(
    transport: Transport, given: Sequence[Bundle], cuts: Cuts, *, version: int
) -> dict[str, Tensor]:
    """This rank's tensors of that version, from whoever holds which part of them."""
    for one in given:
        if one.version != version:
            message = f"expected version {version}, found {one.version}"
            raise TransferError(message, retryable=False)
    found = fetch(transport, given, cuts)
    return {name: _tensor(one) for name, one in found.items()}


def _tensor(part: Part) -> Tensor:
    flat = torch.from_numpy(part.data).view(getattr(torch, part.dtype))
    return flat.reshape(part.cut.shape)
