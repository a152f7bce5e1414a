"""A cell's checkpoints: what it begins with, and what it writes beside serving and training.

Rule 1: a folder that is there is whole, and is never changed.
Rule 2: an error leaves what was there before, and costs the trainer nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from time import perf_counter
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gyre.cell.protocol import SavedCheckpoint
from gyre.cell.spec import CellSpec
from gyre.inference.engine.open import device_of, dtype_of
from gyre.model.checkpoint import Named, appearing, portions, save_tensors
from gyre.model.checkpoint_store import (
    OPTIMIZER,
    CheckpointManifest,
    Shard,
    StateManifest,
    describe_file,
    read_manifest,
    read_state_manifest,
    require_state_manifest,
    verify_files,
    write_state_manifest,
)
from gyre.model.checkpoint_store import STATE_MANIFEST_FORMAT as FORMAT
from gyre.model.loader import load_network
from gyre.model.network import Network
from gyre.model.registry import model_folder
from gyre.model.weights import digest_of
from gyre.storage.files import sync
from gyre.trainer.offload import Snapshot
from gyre.trainer.optimizer import OptimizerState
from gyre.types.errors import CheckpointError, ModelError, OutOfMemory


def planned_network(plan: CellSpec, rank: int = 0) -> Network:
    """The network that a cell's plan begins with, on the device of a rank.

    Files that go with every later version, a tokenizer's above all, are those of the plan's model:
    the checkpoint that it begins with may be removed meanwhile.
    """
    place = device_of(plan.device)
    if str(place) == "cuda" and plan.ranks > 1:
        # Each on its own, because NCCL refuses two ranks on one device.
        place = device_of(f"cuda:{plan.local_rank(rank)}")
        torch.cuda.set_device(place)
    network = load_network(plan.source, device=place, dtype=dtype_of(plan.dtype, place))
    network.module.name_or_path = str(model_folder(plan.model))
    return network


def write_state(folder: Path, rank: int, state: OptimizerState) -> tuple[Shard, ...]:
    """The rank's files are there and on the disk; ModelError where they cannot be."""
    files = []
    try:
        for number, held in enumerate(portions(sorted(state.tensors.items()))):
            path = folder / f"rank-{rank:05d}-{number:05d}.safetensors"
            save_file(held, path)
            sync(path)
            files.append(describe_file(path))
    except (OSError, SafetensorError) as error:
        message = f"{folder}: the state of rank {rank} cannot be written: {error}"
        raise ModelError(message) from error
    return tuple(files)


def read_state(checkpoint: Path, rank: int, *, stages: int, shards: int) -> OptimizerState:
    """What this rank of a cell of this layout has written; ModelError for anything else."""
    manifest = require_state_manifest(checkpoint)
    _check_layout(checkpoint, manifest, stages=stages, shards=shards)
    files = manifest.ranks[rank]
    verify_files(checkpoint / OPTIMIZER, files)
    tensors: dict[str, Tensor] = {}
    for shard in files:
        path = checkpoint / OPTIMIZER / Path(shard.file).name
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            message = f"{path}: expected a whole safetensors file: {error}"
            raise ModelError(message) from error
    return OptimizerState(num_steps=manifest.num_steps, tensors=tensors)


def _check_layout(checkpoint: Path, manifest: StateManifest, *, stages: int, shards: int) -> None:
    found = (manifest.stages, manifest.shards, len(manifest.ranks))
    if found != (stages, shards, stages * shards):
        message = (
            f"{checkpoint / OPTIMIZER}: expected the state of {stages} stages of {shards} shards, "
            f"found that of {manifest.stages} of {manifest.shards}"
        )
        raise ModelError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenState:
    """The files of an optimizer's state."""

    num_steps: int
    ranks: tuple[tuple[Shard, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCost:
    """Seconds of the last copy into main memory: how long training stalled, and all of it."""

    stalled_s: float = 0.0
    copied_s: float = 0.0


class StateCopies(Protocol):
    """Copies of the state of all ranks of a cell, which stay until the next are made."""

    def copy(self, version: int, *, weights_only: bool) -> None:
        """At least what was asked for."""
        ...

    def weights(self) -> Callable[[], Named]:
        """Of the whole model, to be asked for as often as they are wanted."""
        ...

    def write(self, folder: Path) -> WrittenState: ...

    def cost(self) -> CopyCost: ...


class SingleRankCopies:
    """The copy of the state of a cell of one rank."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def copy(self, version: int, *, weights_only: bool) -> None:
        self._snapshot.copy(version, weights_only=weights_only)

    def weights(self) -> Callable[[], Named]:
        return self._snapshot.weights

    def write(self, folder: Path) -> WrittenState:
        state = self._snapshot.state()
        return WrittenState(num_steps=state.num_steps, ranks=(write_state(folder, 0, state),))

    def cost(self) -> CopyCost:
        return CopyCost(stalled_s=self._snapshot.stalled_s, copied_s=self._snapshot.copied_s)


class CheckpointWriter:
    """Writes one checkpoint at a time; its methods block, and any thread may call them."""

    def __init__(
        self, copies: StateCopies, network: Network, *, stages: int = 1, shards: int = 1
    ) -> None:
        """The network says what model the weights are of; its own are not looked at."""
        self._copies = copies
        self._network = network
        self._dtype = network.dtype
        self._stages = stages
        self._shards = shards
        self._news = Condition()
        self._is_busy = False

    def save(self, folder: Path, version: int) -> SavedCheckpoint:
        """The weights are durable, written now or by a checkpoint that is under way."""
        began = perf_counter()
        with self._turn(folder) as is_mine:
            if not is_mine:
                return self._found(folder, version, began)
            self._copies.copy(version, weights_only=True)
            manifest = self._write_weights(folder, version)
            return self._saved(manifest, None, began, self._copies.cost())

    def checkpoint(self, folder: Path, version: int) -> SavedCheckpoint:
        """Weights and optimizer are durable."""
        began = perf_counter()
        with self._turn(folder / OPTIMIZER) as is_mine:
            if not is_mine:
                return self._found(folder, version, began)
            self._copies.copy(version, weights_only=False)
            if folder.exists():
                manifest = self._there(folder, version)
                digest = digest_of(self._copies.weights()())
            else:
                manifest = self._write_weights(folder, version)
                digest = manifest.digest
            state = self._write_state(folder, version, digest)
            return self._saved(manifest, state, began, self._copies.cost())

    @contextmanager
    def _turn(self, wanted: Path) -> Iterator[bool]:
        """Whether it is left to write; False as soon as another has written it."""
        with self._news:
            self._news.wait_for(lambda: wanted.exists() or not self._is_busy)
            is_mine = not wanted.exists()
            if is_mine:
                self._is_busy = True
        try:
            with as_checkpoint_error():
                yield is_mine
        finally:
            if is_mine:
                with self._news:
                    self._is_busy = False
                    self._news.notify_all()

    def _write_weights(self, folder: Path, version: int) -> CheckpointManifest:
        named = self._copies.weights()
        manifest = save_tensors(self._network, named, folder, version=version, dtype=self._dtype)
        with self._news:
            self._news.notify_all()
        return manifest

    def _write_state(self, folder: Path, version: int, digest: str) -> StateManifest:
        with appearing(folder / OPTIMIZER) as part:
            written = self._copies.write(part)
            manifest = StateManifest(
                format=FORMAT,
                version=version,
                digest=digest,
                num_steps=written.num_steps,
                stages=self._stages,
                shards=self._shards,
                ranks=written.ranks,
            )
            write_state_manifest(part, manifest)
        return manifest

    def _found(self, folder: Path, version: int, began: float) -> SavedCheckpoint:
        manifest = self._there(folder, version)
        return self._saved(manifest, read_state_manifest(folder), began, CopyCost())

    def _there(self, folder: Path, version: int) -> CheckpointManifest:
        manifest = read_manifest(folder)
        if manifest is None or manifest.version != version:
            found = "no manifest" if manifest is None else f"version {manifest.version}"
            message = f"{folder}: expected a checkpoint of version {version}, found {found}"
            raise CheckpointError(message, retryable=False)
        return manifest

    def _saved(
        self,
        manifest: CheckpointManifest,
        state: StateManifest | None,
        began: float,
        cost: CopyCost,
    ) -> SavedCheckpoint:
        ranks = () if state is None else state.ranks
        return SavedCheckpoint(
            digest=manifest.digest,
            seconds=perf_counter() - began,
            num_bytes=_bytes(manifest.shards) + sum(map(_bytes, ranks)),
            has_optimizer=state is not None,
            stalled_s=cost.stalled_s,
            copied_s=cost.copied_s,
        )


@contextmanager
def as_checkpoint_error() -> Iterator[None]:
    """A disk or a main memory that is full is the checkpoint's trouble, and may be tried again."""
    try:
        yield
    except (ModelError, OutOfMemory) as error:
        raise CheckpointError(str(error)) from error


def _bytes(files: Sequence[Shard]) -> int:
    return sum(file.num_bytes for file in files)
