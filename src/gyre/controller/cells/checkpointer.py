"""Makes a run's checkpoints after its steps, beside training, and removes those it needs no more.

Rule 1: none is ordered before the journal has the step that made its weights.
Rule 2: what is published, what a cell reads and what a core could begin from stays.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gyre.batching.work_queue import CORE
from gyre.cell.client import CellClient
from gyre.cell.protocol import SavedCheckpoint
from gyre.config.run_config import CheckpointConfig
from gyre.controller.cells.cell import RunCells
from gyre.controller.run_loop import RunLoop
from gyre.model import checkpoint_store
from gyre.model.checkpoint_store import Checkpoint, name_of
from gyre.types.errors import CellError, CellGone, CheckpointError
from gyre.types.run_events import CheckpointFailed, CheckpointMade, CheckpointRefused

RETRY_S = 5.0
"""Pause before a checkpoint that nothing goes on without is tried again."""


class Checkpointer:
    """Has the core write checkpoints, publishes them, and removes those that are not needed."""

    def __init__(
        self, loop: RunLoop, cells: RunCells, *, folder: Path, section: CheckpointConfig
    ) -> None:
        self._loop = loop
        self._cells = cells
        self._folder = folder
        self._section = section
        self._in_use: Counter[int] = Counter()
        self._tidying = asyncio.Lock()
        """Held while checkpoints are removed, which one task does at a time."""
        self._whole: list[int] = []
        """Versions with the optimizer's state, as they became durable."""
        self.covered = 0
        """The version from which on steps may have to be replayed."""
        self._published: Checkpoint | None = None
        self._acknowledged = 0
        """What the journal calls published."""

    @property
    def published(self) -> Checkpoint:
        """What engines are given; before the first `publish` there is nothing."""
        assert self._published is not None
        return self._published

    def publish(self, new: Checkpoint) -> None:
        """Engines are given this from now on; what they had stays until all have it."""
        self._published = new

    def acknowledged(self, version: int) -> None:
        """The journal has it that this version is published."""
        self._acknowledged = version

    def begin(self, version: int) -> None:
        """The core is at this version; a checkpoint of it is made meanwhile, if one is due."""
        if version % self._section.every == 0:
            self._loop.spawn(self._try(version))

    async def made(self, version: int) -> None:
        """The core's state of this version is durable; it is tried until it is."""
        saved = await self._insist(
            version, lambda core, path: core.checkpoint(path, version=version)
        )
        await self._is_made(version, saved)

    async def saved(self, version: int) -> tuple[Checkpoint, SavedCheckpoint]:
        """The core's weights of this version are durable; it is tried until they are."""
        saved = await self._insist(version, lambda core, path: core.save(path, version=version))
        found = Checkpoint(
            version=version,
            folder=self._path(version),
            digest=saved.digest,
            has_optimizer=saved.has_optimizer,
        )
        return found, saved

    async def to_begin_from(self, most: int) -> Checkpoint | None:
        """The newest that a core can begin from, when none is alive; damaged ones are set aside.

        None before the first: then it begins as it did at the start of the run.
        """

        def refused(path: Path, reason: str) -> None:
            aside.append((int(path.name[1:]), reason))
            checkpoint_store.set_aside(path)

        def found() -> Checkpoint | None:
            checkpoint_store.sweep(self._folder)
            return checkpoint_store.newest(
                self._folder, with_optimizer=True, most=most, refused=refused
            )

        aside: list[tuple[int, str]] = []
        async with self._tidying:
            newest = await asyncio.to_thread(found)
        for version, reason in aside:
            self._loop.record(CheckpointRefused(version=version, reason=reason))
            # No core can begin from it, so it covers nothing.
            self._whole = [whole for whole in self._whole if whole != version]
        return newest

    @contextmanager
    def using(self, version: int) -> Iterator[None]:
        """A context in which a cell reads this version, so that it is not removed."""
        self._in_use[version] += 1
        try:
            yield
        finally:
            self._in_use[version] -= 1

    async def prune(self) -> None:
        """Of older versions the newest few stay."""
        async with self._tidying:
            await asyncio.to_thread(
                checkpoint_store.prune,
                self._folder,
                keep=self._section.keep,
                in_use={self.published.version, self._acknowledged, *(+self._in_use)},
                optimizers=self._section.optimizers,
            )

    async def _try(self, version: int) -> None:
        try:
            saved = await self._cells[CORE].client.checkpoint(self._path(version), version=version)
        except CellGone:
            return  # Which the health monitor notices.
        except CellError as error:
            self._loop.record(CheckpointFailed(version=version, reason=str(error)))
            return
        await self._is_made(version, saved)

    async def _insist(
        self, version: int, write: Callable[[CellClient, Path], Any]
    ) -> SavedCheckpoint:
        reported = None
        while True:
            try:
                saved: SavedCheckpoint = await write(self._cells[CORE].client, self._path(version))
            except CheckpointError as error:
                if not error.retryable:
                    raise
                if str(error) != reported:
                    reported = str(error)
                    self._loop.record(CheckpointFailed(version=version, reason=reported))
                await asyncio.sleep(RETRY_S)
            else:
                return saved

    async def _is_made(self, version: int, saved: SavedCheckpoint) -> None:
        self._loop.record(
            CheckpointMade(
                version=version,
                digest=saved.digest,
                num_bytes=saved.num_bytes,
                has_optimizer=saved.has_optimizer,
                stalled_s=saved.stalled_s,
                copied_s=saved.copied_s,
                seconds=saved.seconds,
            )
        )
        if version not in self._whole:
            self._whole = [*self._whole[-1:], version]
        # The one before it may have to do if this one turns out to be damaged.
        self.covered = self._whole[0] if len(self._whole) > 1 else 0
        await self.prune()

    def _path(self, version: int) -> Path:
        return self._folder / name_of(version)
