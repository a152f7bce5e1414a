"""Replays a recorded run: its settings from plain values, its events through a new scheduler."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import Command, Event
from gyre.scheduler.policies import (
    Async,
    Boundary,
    Colocate,
    Continuous,
    Elastic,
    LongestFirst,
    OldestFirst,
    Resumable,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.types.errors import ConfigError, wrap_errors
from gyre.types.run_events import RUN_EVENTS

EVENTS: tuple[type, ...] = get_args(Event)
"""Every kind of event that a scheduler hears."""
JOURNAL_EVENTS: tuple[type, ...] = (*EVENTS, *RUN_EVENTS)
"""Every kind that the journal of a run holds, beside the journal's own."""

_CHOICES: dict[str, dict[str, type]] = {
    "dispatch": {"boundary": Boundary, "continuous": Continuous},
    "placement": {
        "elastic": Elastic,
        "async": Async,
        "colocate": Colocate,
        "resumable": Resumable,
    },
    "launch_order": {"oldest": OldestFirst, "longest": LongestFirst},
}


def plain_shape(shape: SchedulerConfig) -> dict[str, Any]:
    """The shape as text, numbers, lists and tables; `shape_of` gives it back."""
    return {entry.name: _plain(entry.name, getattr(shape, entry.name)) for entry in fields(shape)}


def shape_of(plain: Mapping[str, Any]) -> SchedulerConfig:
    """The shape that was written down; a field that was not has its default."""
    known = {entry.name for entry in fields(SchedulerConfig)}
    if unknown := sorted(set(plain) - known):
        raise ConfigError(f"shape: unknown {', '.join(unknown)}")
    wrong = (TypeError, KeyError, AttributeError)
    with wrap_errors(ConfigError, f"shape: {plain} describes none", wrong):
        return SchedulerConfig(**{name: _value(name, value) for name, value in plain.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A scheduler that has handled a recorded run's events, and the commands it returned."""

    scheduler: Scheduler
    orders: tuple[tuple[Command, ...], ...]
    """After each event."""


def replay(shape: SchedulerConfig, events: Iterable[tuple[float, Event]]) -> Replay:
    """The same commands as in the run, because they follow from events and their times alone."""
    scheduler = Scheduler(shape)
    orders = tuple(tuple(scheduler.handle(event, now)) for now, event in events)
    return Replay(scheduler=scheduler, orders=orders)


def _plain(name: str, value: Any) -> Any:
    if name in _CHOICES:
        (kind,) = [kind for kind, made in _CHOICES[name].items() if type(value) is made]
        return {"kind": kind} | {entry.name: getattr(value, entry.name) for entry in fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _value(name: str, plain: Any) -> Any:
    if name in _CHOICES:
        rest = {key: value for key, value in plain.items() if key != "kind"}
        return _CHOICES[name][plain["kind"]](**rest)
    return tuple(plain) if isinstance(plain, list) else plain
