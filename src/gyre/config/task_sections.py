"""Where a run's tasks come from, one frozen section per kind of source."""

from dataclasses import dataclass
from typing import Literal

from gyre.config.bounds import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTasksSection:
    """Tasks in a folder, each a folder with its files."""

    kind: Literal["folder"]
    """One folder per task."""
    path: Text
    """The folder they are in, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlTasksSection:
    """Tasks in a file, each a line of JSON."""

    kind: Literal["jsonl"]
    """One line per task."""
    path: Text
    """The file, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTasksSection:
    """Tasks in Harbor's format."""

    kind: Literal["harbor"]
    """Folders with a task.toml, or a dataset.toml that names them."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSweTasksSection:
    """Tasks of DeepSWE."""

    kind: Literal["deepswe"]
    """Harbor's format, with scores by fail-to-pass and pass-to-pass."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nl2RepoTasksSection:
    """Tasks of NL2RepoBench."""

    kind: Literal["nl2repo"]
    """Folders with a start.md, and a fixed number of tests for each."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""
    tests: Text
    """Folder with a folder of tests for each task, copied from its image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTasksSection:
    """Tasks that a function makes."""

    kind: Literal["python"]
    """A function of one's own."""
    source: Text
    """MODULE:FUNCTION?key=value or FILE.py:FUNCTION; it gives tasks, the same in every process."""


TasksSection = (
    FolderTasksSection
    | JsonlTasksSection
    | HarborTasksSection
    | DeepSweTasksSection
    | Nl2RepoTasksSection
    | PythonTasksSection
)
