"""Makes a run's checkpoints after its steps, beside training, and removes those it needs no more.

Rule 1: none is ordered before the journal has the step that made its weights.
Rule 2: what is published, what a cell reads and what a core could begin from stays.
Rule 3: what is published and turns out to be damaged is made again by the core, and published anew.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from gyre.aio import ChangeSignal
from gyre.batching.work_queue import CORE
from gyre.cell.client import CellClient
from gyre.cell.protocol import SavedCheckpoint
from gyre.config.run_config import CheckpointConfig
from gyre.controller.cells.cell import RunCells
from gyre.controller.run_loop import RunLoop
from gyre.model import checkpoint_store
from gyre.model.checkpoint_store import OPTIMIZER, Checkpoint, name_of
from gyre.scheduler.messages import EngineLost
from gyre.types.errors import CellError, CellGone, CheckpointError, ModelError
from gyre.types.ids import EngineId
from gyre.types.run_events import (
    CheckpointFailed,
    CheckpointMade,
    CheckpointRefused,
    WeightsPublished,
)

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
        """The version from which on steps may have to be replayed, and can be."""
        self._published: Checkpoint | None = None
        self.is_lost = False
        """What is published was found damaged, and engines wait until there is another."""
        self._changes = ChangeSignal()
        """Told when something is published."""
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
        self.is_lost = False
        self._changes.tell()

    async def check(self) -> None:
        """Where what is published is damaged, a core that still has it writes it again."""
        before = self.published
        # A disk that fails is looked at again the next time.
        with suppress(CellError, OSError):
            if await self._is_sound():
                return
            path = self._path(before.version)
            saved = await self._cells[CORE].client.save(path, version=before.version)
            self._replace(before, self._checkpoint(before.version, saved), saved)

    async def publish_again(self) -> None:
        """The core has the published version again, whose weights were lost."""
        before = self.published
        new, saved = await self.saved(before.version)
        self._replace(before, new, saved)

    async def _is_sound(self) -> bool:
        async with self._tidying:
            published = self.published
            reason = None if self.is_lost else await asyncio.to_thread(_damage, published)
            # Meanwhile others may have been published.
            if reason is not None and published is self._published:
                self.is_lost = True
                self._refused(published.version, reason)
        return not self.is_lost

    def _replace(self, before: Checkpoint, new: Checkpoint, saved: SavedCheckpoint) -> None:
        """Other bits are journaled, and engines that serve the old ones load these (SPEC 2.4)."""
        if self._published is not before:
            return
        self.publish(new)
        if new.digest == before.digest:
            return
        self._loop.record(
            WeightsPublished(
                version=new.version,
                digest=new.digest,
                save_s=saved.seconds,
                load_s=0.0,
                num_bytes=saved.num_bytes,
            )
        )
        for number in self._cells:
            self._loop.record(EngineLost(engine=EngineId(number)))

    async def whole(self) -> None:
        """Returns when what is published can be loaded."""
        await self._changes.until(lambda: not self.is_lost)

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
        return self._checkpoint(version, saved), saved

    async def to_begin_from(self, most: int) -> Checkpoint | None:
        """The newest that a core can begin from, when none is alive; damaged ones are set aside.

        Steps since then can be taken again, so an older state of the optimizer does where that of
        the newest weights is damaged; without any it begins anew, with the newest sound weights.
        None before the first: then the core begins as it did at the start of the run.
        What is published is looked at too: where it is damaged, one from which it can be made again
        is preferred.
        """
        if not await self._is_sound() and self.published.version < most:
            with suppress(CheckpointError):
                return await self._begin_from(self.published.version)
        return await self._begin_from(most)

    async def _begin_from(self, most: int) -> Checkpoint | None:

        def refused(path: Path, reason: str) -> None:
            version = path.parent.name if path.name == OPTIMIZER else path.name
            aside.append((int(version[1:]), reason))
            checkpoint_store.set_aside(path)

        def found() -> Checkpoint | None:
            checkpoint_store.sweep(self._folder)
            asked = partial(
                checkpoint_store.newest,
                self._folder,
                least=self.covered,
                most=most,
                refused=refused,
            )
            newest = asked(with_optimizer=True)
            return asked() if newest is None and self.covered else newest

        aside: list[tuple[int, str]] = []
        async with self._tidying:
            newest = await asyncio.to_thread(found)
        for version, reason in aside:
            self._refused(version, reason)
        if newest is None and self.covered:
            message = f"{self._folder}: expected a sound checkpoint of version {self.covered} to "
            raise CheckpointError(f"{message}{most}, found none", retryable=False)
        if newest is not None and not newest.has_optimizer:
            reason = f"no sound state of the optimizer since version {self.covered} is left: "
            self._refused(newest.version, f"{reason}it begins anew with the weights of this one")
        return newest

    def _refused(self, version: int, reason: str) -> None:
        self._loop.alarm(f"checkpoint of version {version}: {reason}")
        self._loop.record(CheckpointRefused(version=version, reason=reason))
        # No core can begin from it, so it covers nothing.
        self._whole = [whole for whole in self._whole if whole != version]

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
            try:
                await asyncio.to_thread(
                    checkpoint_store.prune,
                    self._folder,
                    keep=self._section.keep,
                    in_use={self.published.version, self._acknowledged, *(+self._in_use)},
                    optimizers=self._section.optimizers,
                )
            except OSError as error:
                self._loop.alarm(f"older checkpoints are removed with the next one: {error}")

    async def _try(self, version: int) -> None:
        try:
            saved = await self._cells[CORE].client.checkpoint(self._path(version), version=version)
        except CellGone:
            return  # Which the health monitor notices.
        except CellError as error:
            self._failed(version, str(error), then="the run goes on")
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
                    self._failed(version, reported, then="is tried again")
                await asyncio.sleep(RETRY_S)
            else:
                if reported is not None:
                    self._loop.alarm(f"version {version} is written")
                return saved

    def _failed(self, version: int, reason: str, *, then: str) -> None:
        self._loop.alarm(f"version {version} was not written, and {then}: {reason}")
        self._loop.record(CheckpointFailed(version=version, reason=reason))

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
        # The one before it may have to do if this one turns out to be damaged. What is forgotten of
        # earlier steps stays so.
        if len(self._whole) > 1:
            self.covered = max(self.covered, self._whole[0])
        await self.prune()

    def _checkpoint(self, version: int, saved: SavedCheckpoint) -> Checkpoint:
        return Checkpoint(
            version=version,
            folder=self._path(version),
            digest=saved.digest,
            has_optimizer=saved.has_optimizer,
        )

    def _path(self, version: int) -> Path:
        return self._folder / name_of(version)


def _damage(published: Checkpoint) -> str | None:
    """What is wrong with weights, which are set aside then."""
    try:
        found = checkpoint_store.verified(published.folder)
    except ModelError as error:
        if published.folder.exists():
            checkpoint_store.set_aside(published.folder)
        return str(error)
    if found.digest == published.digest:
        return None
    # Made again by a core whose controller was gone before it could write that down.
    return f"{found.folder}: expected digest {published.digest}, found {found.digest}"
