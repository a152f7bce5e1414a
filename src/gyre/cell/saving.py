"""A cell's checkpoints: written one at a time, weights first, beside whatever the cell does.

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

from gyre.cell.protocol import SavedCheckpoint
from gyre.cell.state_files import write_state
from gyre.model.checkpoint import Named, appearing, save_tensors
from gyre.model.manifest import CheckpointManifest, Shard, read_manifest
from gyre.model.network import Network
from gyre.model.state_manifest import (
    FORMAT,
    OPTIMIZER,
    StateManifest,
    read_state_manifest,
    write_state_manifest,
)
from gyre.model.weights import digest_of
from gyre.trainer.snapshot import Snapshot
from gyre.types.errors import CheckpointError, ModelError, OutOfMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenState:
    """An optimizer's state in files."""

    num_steps: int
    ranks: tuple[tuple[Shard, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCost:
    """Of the last copy."""

    stalled_s: float = 0.0
    copied_s: float = 0.0


class StateCopies(Protocol):
    """The state of all ranks of a cell, as copies that stay until the next."""

    def copy(self, version: int, *, weights_only: bool) -> None:
        """At least what was asked for."""
        ...

    def weights(self) -> Callable[[], Named]:
        """Of the whole model, to be asked for as often as they are wanted."""
        ...

    def write(self, folder: Path) -> WrittenState: ...

    def cost(self) -> CopyCost: ...


class SingleRankCopies:
    """The copies of a cell of one rank."""

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
    """Whose turn it is to write; methods are called from any thread and return when it is done."""

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
    return sum(one.num_bytes for one in files)
