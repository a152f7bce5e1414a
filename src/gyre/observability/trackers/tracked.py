"""The run that metrics belong to, as trackers are told of it."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ID_FILE = "tracked-as"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker is opened with."""

    name: str
    """For people; other runs may have the same."""
    id: str
    """This run's alone, and the same after a resume."""
    folder: Path
    """The run's; trackers that write files write them there."""
    project: str
    """What runs are gathered under, where a tracker has such a thing."""
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """What the run was started with, by path, for those who compare runs."""
    resumed_at: int | None = None
    """Steps from this one on are made again; None for a run that begins."""


def kept_id(folder: Path) -> str:
    """The id that stands in the run's folder; made when there is none."""
    path = folder / ID_FILE
    found = path.read_text().strip() if path.exists() else ""
    if found:
        return found
    made = secrets.token_hex(6)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(made + "\n")
    return made
