"""Stops a run from outside: its controller, its executions, its proxy and its cells.

Rule 1: nothing is lost by it; what was interrupted begins anew when the run is resumed.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from gyre.aio import run_loop
from gyre.cluster.registry import open_cluster
from gyre.config.run_config import ClusterConfig
from gyre.controller import resume
from gyre.controller.executions.supervisors import STOP, AdoptedSupervisor, ProcessSignaller
from gyre.controller.run_dir import RunDir, end_controller, read_run
from gyre.storage.files import is_taken
from gyre.types.errors import ConfigError

END_S = 10.0
"""How long an execution may take to end."""


def stop(folder: Path, tell: Callable[[str], None]) -> int:
    """How many executions and other processes were left without a controller; none is now.

    A controller ends first, with all that is its own. ConfigError with what could not be ended.
    `tell` says what is waited for, and what is passed over.
    """
    end_controller(folder, tell)
    places = RunDir(run=folder.absolute(), share=folder)
    if not places.file.is_file():
        # Without its run file, what runs on this machine can still be ended.
        return run_loop(end_all(places, ClusterConfig(), ""))
    try:
        config = read_run(places.file).config
    except ConfigError as error:
        tell(f"only what runs on this machine is ended, because of {error}")
        return run_loop(end_all(places, ClusterConfig(), ""))
    return run_loop(end_all(places, config.cluster, config.run.name))


async def end_all(places: RunDir, section: ClusterConfig, run: str) -> int:
    """The same for a run that has no controller, or whose controller is about to end."""
    found = [attempt for attempt in sorted(places.attempts.glob("*/")) if is_taken(attempt)]
    # Of others than this machine only what lasts can be left, and that are supervisors.
    asked = section if found else ClusterConfig()
    cluster = await open_cluster(asked, run=run, folder=places.run, key_file=places.token)
    try:
        await asyncio.gather(*(_end(attempt, cluster) for attempt in found))
    finally:
        await cluster.close()
    # The proxy last, so that programs that are being ended see no call fail.
    num_others = await resume.kill_leftovers(places, proxy=True)
    if stuck := [attempt.name for attempt in found if is_taken(attempt)]:
        raise ConfigError(f"{places.run}: could not be ended: {', '.join(stuck)}")
    return len(found) + num_others


async def _end(folder: Path, by: ProcessSignaller) -> None:
    """What its program has done by now is assessed when the run is resumed."""
    supervisor = AdoptedSupervisor(folder, by)
    supervisor.signal(STOP)
    await supervisor.end(END_S)
