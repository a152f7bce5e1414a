"""Weights in files: opened and checked whole, put into a network only after that, and digested.

Rule 1: names, shapes and values are all checked before the first is written, so a checkpoint that
cannot be used leaves the network as it was.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from gyre.model.checkpoint_store import read_manifest, verify
from gyre.model.network import Network
from gyre.types.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
AHEAD = 8
"""Parameters that are fetched from a device together."""


class TensorSource(Protocol):
    """Tensors by name, with their shapes known before they are read."""

    where: str

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def get(self, name: str) -> Tensor: ...


class SafetensorsFolder:
    """The safetensors of one folder, open; raises ModelError for what is not whole."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}
        manifest = read_manifest(folder)
        if manifest is not None:
            verify(folder, manifest)
        with ExitStack() as stack:
            for path, names in _shards(folder).items():
                self._open(stack, path, names)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def check(self, module: nn.Module) -> None:
        """Every parameter is here in its shape, and nothing else is."""
        check(module, self)

    def get(self, name: str) -> Tensor:
        try:
            return self._files[name].get_tensor(name)  # type: ignore[no-any-return]
        except (OSError, SafetensorError) as error:
            message = f"{self.where}: {name}: cannot be read: {error}"
            raise ModelError(message) from error

    def _open(self, stack: ExitStack, path: Path, names: list[str] | None) -> None:
        try:
            file: Any = stack.enter_context(safe_open(path, framework="pt"))
            found = file.keys()
            for name in found if names is None else names:
                if name not in found:
                    message = f"{path}: {name}: in the index, not in the file"
                    raise ModelError(message)
                self.shapes[name] = tuple(file.get_slice(name).get_shape())
                self._files[name] = file
        except (OSError, SafetensorError) as error:
            message = f"{path}: expected a whole safetensors file: {error}"
            raise ModelError(message) from error


class InMemoryTensors:
    """Tensors that are in memory already."""

    where = "weights"

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.shapes = {name: tuple(one.shape) for name, one in tensors.items()}

    def get(self, name: str) -> Tensor:
        return self._tensors[name]


def load_into(network: Network, source: Path | Mapping[str, Tensor]) -> None:
    """The network's weights are those of a folder or of tensors by name (SPEC 2.4).

    Raises ModelError and changes nothing where a name, a shape or a value is wrong.
    """
    if not isinstance(source, Path):
        _load(network, InMemoryTensors(source))
        return
    with SafetensorsFolder(source) as stored:
        _load(network, stored)


def _load(network: Network, source: TensorSource) -> None:
    module = network.module
    check(module, source)
    _check_values(module, source)
    with torch.no_grad():
        for name, one in module.named_parameters():
            one.copy_(source.get(name))


def fill(module: nn.Module, source: TensorSource) -> None:
    """A new module's parameters are the source's; it may not be used after a ModelError."""
    with torch.no_grad():
        for name, one in module.named_parameters():
            one.copy_(source.get(name))
    _check_values(module, source)


def check(module: nn.Module, source: TensorSource) -> None:
    """The source has every parameter of the module in its shape, and nothing more."""
    wanted = {name: tuple(one.shape) for name, one in module.named_parameters()}
    for name, shape in wanted.items():
        if name not in source.shapes:
            _refuse(source, name, f"a tensor of shape {shape}", "none")
        if shape != source.shapes[name]:
            _refuse(source, name, f"shape {shape}", str(source.shapes[name]))
    # A tied head is stored by some, and so are the angles of rotary embeddings.
    spare = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name in source.shapes:
        if name not in wanted and name not in spare and not name.endswith("rotary_emb.inv_freq"):
            _refuse(source, name, "no such tensor", f"shape {source.shapes[name]}")


def _check_values(module: nn.Module, source: TensorSource) -> None:
    """Every value is a finite number in the type that the module will hold it in."""
    sums = []
    for name, one in module.named_parameters():
        value = source.get(name).detach()
        if not value.is_floating_point():
            _refuse(source, name, "floating point numbers", str(value.dtype))
        # Nothing that is not finite is lost in a sum, and a sum costs a tenth of a mask; it is made
        # where the values go, because a GPU makes it while a host would still read them.
        held = value.to(one.device, one.dtype)
        sums.append(held.sum(dtype=torch.promote_types(held.dtype, torch.float32)))
    # One answer from the device for all of them.
    if sums and bool(torch.isfinite(torch.stack(sums)).all()):
        return
    for name, one in module.named_parameters():
        if not bool(torch.isfinite(source.get(name).to(one.dtype)).all()):
            _refuse(source, name, "finite numbers", "others")


def _refuse(source: TensorSource, name: str, expected: str, found: str) -> None:
    message = f"{source.where}: {name}: expected {expected}, found {found}"
    raise ModelError(message)


def digest(network: Network, *, dtype: torch.dtype | None = None) -> str:
    """Names, types, shapes and values in 32 hex digits, equal on every device.

    With a type: what the weights would have if they were held in it.
    """
    return digest_of(parameters(network, dtype))


def digest_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The same of tensors in main memory, in the order of their names."""
    state = xxhash.xxh3_128()
    for name, one in tensors:
        state.update(f"{name} {one.dtype} {tuple(one.shape)}\n".encode())
        state.update(one.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def parameters(network: Network, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Each parameter once, in the order of names, in main memory, in a type if one is given."""

    def held(one: Tensor) -> Tensor:
        wide = one.detach().to(one.dtype if dtype is None else dtype)
        return wide.to("cpu").contiguous()

    named = sorted(network.module.named_parameters())
    if network.device.type == "cpu":
        yield from ((name, held(one)) for name, one in named)
        return
    # Some are fetched ahead, because new memory is filled by one thread at a fraction of its speed.
    with ThreadPoolExecutor(AHEAD) as threads:
        ahead: deque[tuple[str, Future[Tensor]]] = deque()
        for name, one in named:
            ahead.append((name, threads.submit(held, one)))
            if len(ahead) == AHEAD:
                first, found = ahead.popleft()
                yield first, found.result()
        yield from ((name, found.result()) for name, found in ahead)


def _shards(folder: Path) -> dict[Path, list[str] | None]:
    """Files with the tensors that are wanted of each; None: all of them."""
    index = folder / INDEX
    if not index.is_file():
        single = folder / SINGLE
        if not single.is_file():
            message = f"{single}: expected the weights, found no such file"
            raise ModelError(message)
        return {single: None}
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()
        by_file: dict[Path, list[str] | None] = {}
        for name, file in places:
            # A name only: an index reaches no file of another folder.
            names = by_file.setdefault(folder / Path(file).name, [])
            assert names is not None
            names.append(name)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        message = f"{index}: expected an object with weight_map: {error}"
        raise ModelError(message) from error
    return by_file
