"""Where a run's tasks come from, one frozen section per kind of source."""

from dataclasses import dataclass
from typing import Literal

from gyre.config.bounds import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTasksConfig:
    """Tasks in a folder, each a folder with its files."""

    kind: Literal["folder"]
    """One folder per task."""
    path: Text
    """The folder they are in, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlTasksConfig:
    """Tasks in a file, each a line of JSON."""

    kind: Literal["jsonl"]
    """One line per task."""
    path: Text
    """The file, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTasksConfig:
    """Tasks in Harbor's format."""

    kind: Literal["harbor"]
    """Folders with a task.toml, or a dataset.toml that names them."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSweTasksConfig:
    """Tasks of DeepSWE."""

    kind: Literal["deepswe"]
    """Harbor's format, with scores by fail-to-pass and pass-to-pass."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nl2RepoTasksConfig:
    """Tasks of NL2RepoBench."""

    kind: Literal["nl2repo"]
    """Folders with a start.md, and a fixed number of tests for each."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""
    tests: Text
    """Folder with a folder of tests for each task, copied from its image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTasksConfig:
    """Tasks that a function makes."""

    kind: Literal["python"]
    """A function of one's own."""
    source: Text
    """MODULE:FUNCTION?key=value or FILE.py:FUNCTION; it gives tasks, the same in every process."""


TasksConfig = (
    FolderTasksConfig
    | JsonlTasksConfig
    | HarborTasksConfig
    | DeepSweTasksConfig
    | Nl2RepoTasksConfig
    | PythonTasksConfig
)
