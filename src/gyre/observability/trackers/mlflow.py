"""MLflow: a run of an experiment, found again by a tag; the server comes from the environment."""

import re
import time
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run

from gyre.observability.trackers.registry import TrackedRun

TAG = "gyre.run"
MOST_CHARACTERS = 6000
"""Of a parameter's value; MLflow refuses more."""
MOST_AT_ONCE = 100
"""Parameters of one request; MLflow refuses more."""
_UNFIT = re.compile(r"[^\w./: -]", re.ASCII)
"""What the name of a parameter cannot hold."""


class MlflowTracker:
    """A run at an MLflow server; each log is one request."""

    def __init__(self, run: TrackedRun) -> None:
        self._client = MlflowClient()
        self._id = self._found(run).info.run_id
        self._is_closed = False

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        now_ms = int(time.time() * 1000)
        self._client.log_batch(
            self._id, metrics=[Metric(name, value, now_ms, step) for name, value in values.items()]
        )

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._client.set_terminated(self._id)

    def _found(self, run: TrackedRun) -> Run:
        experiment = self._client.get_experiment_by_name(run.project)
        place = (
            self._client.create_experiment(run.project)
            if experiment is None
            else experiment.experiment_id
        )
        found = self._client.search_runs([place], filter_string=f"tags.`{TAG}` = '{run.id}'")
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return found[0]
        made = self._client.create_run(place, run_name=run.name, tags={TAG: run.id})
        # Only here, because a parameter cannot be changed later.
        parameters = [
            Param(_UNFIT.sub("_", name), str(value)[:MOST_CHARACTERS])
            for name, value in run.settings.items()
        ]
        for start in range(0, len(parameters), MOST_AT_ONCE):
            part = parameters[start : start + MOST_AT_ONCE]
            self._client.log_batch(made.info.run_id, params=part)
        return made


opened = MlflowTracker
