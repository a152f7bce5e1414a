"""trackio: a local database, or the server or Space that the environment names."""

from collections.abc import Mapping

import trackio

from gyre.observability.trackers.registry import TrackedRun


class TrackioTracker:
    """A run of a trackio project; a thread of trackio's own sends what is logged."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = trackio.init(
            project=run.project,
            # trackio resumes by name, so that the name has to be this run's alone.
            name=f"{run.name}-{run.id}",
            resume="allow",
            config=dict(run.settings),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._is_closed = False

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        if values:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._run.finish()


opened = TrackioTracker
