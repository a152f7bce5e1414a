"""`gyre train`/`resume`: preflight checks, then the controller."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from gyre.aio import run_loop
from gyre.config.loader import LoadedConfig
from gyre.config.validation import Sizes, misfits, untrained, unweighable
from gyre.controller import resume
from gyre.controller.controller import Controller
from gyre.controller.process_specs import sandbox_for
from gyre.controller.resource_usage import ResourceSampler
from gyre.controller.run_dir import RunDir, RunFile
from gyre.controller.run_loop import Listener, warn
from gyre.journal.journal import read
from gyre.model.hf_config import read_description
from gyre.model.registry import model_folder
from gyre.rollout.environment import check
from gyre.scheduler.messages import StopReason
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.types.run_events import RunEnded

DEVICES = Path("/dev")


def check_layout(loaded: LoadedConfig, *, resumes: bool = False) -> None:
    """Raises ConfigError with everything that does not fit; ModelError for a model that is none.

    A run that resumes goes on with the sampling it began with, and a warning says what that means.
    """
    config = loaded.config
    fields = read_description(model_folder(config.model.name)).fields
    sizes = Sizes(
        layers=fields["num_hidden_layers"],
        heads=fields["num_attention_heads"],
        kv_heads=fields["num_key_value_heads"],
        columns=fields["intermediate_size"],
        context_tokens=fields["max_position_embeddings"],
    )
    lines = [*misfits(config, sizes, devices=num_devices()), *untrained(config)]
    if resumes:
        for line in unweighable(config):
            warn(line)
    else:
        lines += unweighable(config)
    if lines:
        raise loaded.refusal(lines)


def num_devices(folder: Path = DEVICES) -> int:
    """CUDA devices of this machine; asked of the kernel, because torch is not loaded here."""
    return sum(path.name.removeprefix("nvidia").isdigit() for path in folder.glob("nvidia*"))


def train(
    run: RunFile,
    *,
    resumes: bool = False,
    listeners: Sequence[Listener] = (),
    tick: Callable[[float], None] | None = None,
) -> StopReason | None:
    """Why the run ended; None if it was asked to stop. With `resumes` it goes on where it was."""
    check_layout(run.loaded, resumes=resumes)
    check(sandbox_for(run.config.sandbox))
    controller = Controller(
        run,
        folder_of(run),
        resumes=resumes,
        listeners=listeners,
        tick=tick,
        usage=ResourceSampler.found(),
    )
    return run_loop(controller.work(), loop_factory=uvloop.new_event_loop)


def folder_of(run: RunFile) -> Path:
    return Path(run.config.run.place)


def clear_away(folder: Path) -> None:
    """A run that is over leaves no process, also where its controller died while it ended."""
    run_loop(resume.kill_leftovers(RunDir(run=folder, share=folder), proxy=True))


def heard_so_far(run: RunFile) -> list[tuple[float, Any]]:
    """Every fact of a run's journal with its time, for who looks at it from now on; that it was
    stopped before is none of them, because it goes on."""
    found = read(folder_of(run) / "journal", kinds=JOURNAL_EVENTS).facts(JOURNAL_EVENTS)
    return [(now, fact) for now, fact in found if not isinstance(fact, RunEnded)]
