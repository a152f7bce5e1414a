"""The weights that a run ends with, measured on its held-out tasks as `gyre evaluate` does it.

The scheduler stops at the last publication, so nothing can be launched under it (SPEC 6.6).
"""

from dataclasses import replace
from pathlib import Path

from gyre.config.run_sections import RunConfig
from gyre.evals.plan import EvalSpec, ServedWeights
from gyre.evals.rollout_results import EvalSummary, read_summary, summed_up
from gyre.evals.rollout_run import roll_out
from gyre.model.checkpoint_store import CHECKPOINTS, EVALUATIONS, name_of
from gyre.types.errors import GyreError


def due(config: RunConfig, run: Path) -> EvalSpec | None:
    """What is measured behind the last publication; None where no round is due, or it was made."""
    held_out, steps = config.evaluation, config.schedule.steps
    if not held_out.slots or held_out.tasks is None or steps is None:
        return None
    if steps // config.schedule.steps_per_burst % held_out.every:
        return None
    folder = run / EVALUATIONS / f"{name_of(steps)}-last"
    if (before := read_summary(folder)) is not None and before.is_whole:
        return None
    return EvalSpec(
        config=replace(
            config,
            run=replace(config.run, folder=str(folder.absolute())),
            tasks=held_out.tasks,
            proxy=replace(config.proxy, port=0),
        ),
        folder=folder,
        members=1,
        concurrency=held_out.slots,
        weights=ServedWeights(
            model=str((run / CHECKPOINTS / name_of(steps)).absolute()), version=steps
        ),
    )


def measured(plan: EvalSpec) -> EvalSummary:
    """What they come to, also kept in the folder of that evaluation; one begun before goes on."""
    results, is_whole = roll_out(plan, begun=lambda number: None, told=lambda one: None)
    what = "held-out tasks, behind the last publication"
    return summed_up(plan, results, tasks=what, is_whole=is_whole)


def why_not(plan: EvalSpec) -> str | None:
    """They are measured, or this is why not; what was trained is no worse for it."""
    try:
        is_whole = measured(plan).is_whole
    except (GyreError, OSError, ExceptionGroup) as error:
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        return f"{type(first).__name__}: {first}"
    return None if is_whole else "told to stop"
