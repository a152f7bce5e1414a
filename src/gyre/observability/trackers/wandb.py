"""Weights & Biases: a run found again by its id; key and mode come from the environment."""

from collections.abc import Mapping

import wandb

from gyre.observability.trackers.registry import TrackedRun
from gyre.types.errors import ConfigError

STEP = "step"


class WandbTracker:
    """A run at W&B; its own process sends what is logged."""

    def __init__(self, run: TrackedRun) -> None:
        # Asked first, because `init` would prompt for a key on a terminal, and wait.
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False, verify=False):
            raise ConfigError("no key: set WANDB_API_KEY, or WANDB_MODE=offline")
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=run.folder,
            config=dict(run.settings),
            settings=wandb.Settings(console="off"),
        )
        # W&B drops what is logged for a step below its own count; a value of ours may go back.
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        if values:
            self._run.log({**values, STEP: step})

    def close(self) -> None:
        self._run.finish()


opened = WandbTracker
