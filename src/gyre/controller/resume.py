"""Continues a run under another controller: restores its components, and does nothing twice.

Rule 1: of the earlier controller's processes only the proxy and supervisors are left to go on.
Rule 2: nothing is decided here; cells are said to have died, and the scheduler orders the rest.
"""

import asyncio

from gyre.cluster.process import AdoptedProcess, holds_log
from gyre.controller.components import Components
from gyre.controller.recovered_state import RecoveredState
from gyre.controller.run_dir import RunDir
from gyre.controller.run_loop import RunLoop
from gyre.model import checkpoint_store
from gyre.model.checkpoint_store import Checkpoint
from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import CellDied, EngineLost, LoadWeights
from gyre.storage.files import is_proxy
from gyre.types.errors import ConfigError
from gyre.types.ids import CellId, EngineId


def restore(found: RecoveredState, parts: Components) -> None:
    """Gives every component its recovered state."""
    left = parts.attempts.recall(found)
    parts.executor.recall(found.outstanding)
    parts.coordinator.restore(found, left)


def continue_run(loop: RunLoop, found: RecoveredState, parts: Components) -> None:
    """What was under way goes on; what was ordered and not answered is done now."""
    scheduler = found.scheduler
    cells, engines = scheduler.cells, scheduler.engines
    # First, so that nothing is launched on engines that are not there.
    for cell in map(CellId, range(len(cells))):
        if cells.state(cell) is CellState.DEAD:
            loop.spawn(parts.transitions.revive(cell))
        else:
            loop.record(CellDied(cell=cell))
    for engine in map(EngineId, range(len(cells), len(engines))):
        if engines.is_ready(engine):
            loop.record(EngineLost(engine=engine))
        else:
            order = LoadWeights(engine=engine, version=found.published)
            loop.spawn(parts.transitions.load(order))
    for group in found.outstanding:
        parts.attempts.resume(group)
    if parts.evaluations is not None:
        parts.evaluations.recall(found.evaluating)


def published(found: RecoveredState, places: RunDir) -> Checkpoint:
    """The weights that engines served last; ConfigError if they are not there any more."""
    version = found.published
    for checkpoint in checkpoint_store.listed(places.checkpoints):
        if checkpoint.version == version and found.digest in (None, checkpoint.digest):
            return checkpoint
    message = f"{places.checkpoints}: expected version {version}, which engines served last"
    raise ConfigError(message if found.digest is None else f"{message}, digest {found.digest}")


async def kill_leftovers(places: RunDir, *, proxy: bool) -> int:
    """Cells of the earlier controller are gone for certain.

    The proxy too, where nothing could go on with it. How many processes still lived.
    """
    left = []
    for path in sorted(places.pids.glob("*")):
        if is_proxy(path.name) and not proxy:
            continue
        log = places.log(path.name)
        text = path.read_text()
        if text.isdecimal() and holds_log(int(text), log):
            left.append(AdoptedProcess(path.name, int(text), log))
    await asyncio.gather(*(process.kill() for process in left))
    return len(left)
