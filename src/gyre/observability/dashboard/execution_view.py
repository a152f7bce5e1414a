"""One execution: tree, calls, outcome, and how its workspace differs from what it began with.

Rule 1: what lies there was written by agent programs and is not trusted: links are not followed,
nothing but plain files is opened, and no file or listing is read beyond a limit.
"""

import difflib
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from gyre.config.loader import load as load_file
from gyre.config.run_config import RunInfoConfig, SelectionConfig
from gyre.model.registry import known_models
from gyre.observability.inspect.call_view import Vocabulary, call_data
from gyre.observability.inspect.tree_layout import SelectionRule, tree_data
from gyre.renderers.tokenizer import PackageTokenizer
from gyre.rewards.command import OUTPUT_FILE as EVALUATION_FILE
from gyre.rollout import facts
from gyre.rollout.spec import ORDER_FILE, ExecutionSpec, read_order
from gyre.rollout.supervisor import OUTPUT_FILE
from gyre.storage import call_log
from gyre.storage.files import RUN_FILE
from gyre.trajectory.loading import LoadedExecution, load
from gyre.types.errors import ConfigError
from gyre.types.outcomes import Assessed, Assessment, OutcomeRecord, StepAssessed

Change = Literal["added", "removed", "changed"]

MOST_ENTRIES = 20_000
"""Files and folders that are looked at on either side."""
MOST_FILES = 500
"""Files that are listed."""
MOST_BYTES = 256 * 1024
"""A larger file is shown by its size, and known to be unchanged by its time."""
MOST_LINES = 4_000
"""Lines of all files together; a longer file is not compared line by line."""
CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A file that is not the same on both sides."""

    path: str
    change: Change
    before_bytes: int | None
    """None where it was not there."""
    after_bytes: int | None
    lines: tuple[str, ...] | None
    """Unified, without the heads; None where it is not text, or too much of it."""
    note: str | None = None
    """Why there are no lines, or what it is if it is no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The files that differ between two folders, by path."""

    files: tuple[Difference, ...]
    num_left_out: int
    """Files that differ and are not listed."""
    is_cut: bool
    """Whether one of the folders holds more than was looked at."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    mode: int
    num_bytes: int
    changed_ns: int


def differences(before: Path | None, after: Path) -> Differences:
    """What became of the first folder in the second; without a first one everything is new."""
    old, old_cut = ({}, False) if before is None else _listed(before)
    new, new_cut = _listed(after)
    found: list[Difference] = []
    lines_left, num_left_out = MOST_LINES, 0
    for path in sorted(old.keys() | new.keys()):
        one, other = old.get(path), new.get(path)
        if one is not None and other is not None and _is_same(one, other):
            continue
        if len(found) == MOST_FILES:
            num_left_out += 1
            continue
        found.append(_difference(path, one, other, lines_left))
        lines_left -= len(found[-1].lines or ())
    return Differences(files=tuple(found), num_left_out=num_left_out, is_cut=old_cut or new_cut)


def _listed(folder: Path) -> tuple[dict[str, _Entry], bool]:
    found: dict[str, _Entry] = {}
    for number, (path, status) in enumerate(_walked(folder)):
        if number == MOST_ENTRIES:
            return found, True
        if stat.S_ISDIR(status.st_mode):
            continue
        name = os.fsencode(path.relative_to(folder)).decode(errors="replace")
        found[name] = _Entry(path, status.st_mode, status.st_size, status.st_mtime_ns)
    return found, False


def _walked(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Leaves out what its programs have shut, or laid deeper than a path can say."""
    waiting = [folder]
    while waiting:
        try:
            inside = sorted(waiting.pop().iterdir())
        except OSError:
            continue
        folders = []
        for one in inside:
            try:
                status = one.lstat()
            except OSError:
                continue
            yield one, status
            if stat.S_ISDIR(status.st_mode):
                folders.append(one)
        waiting += reversed(folders)


def _is_same(one: _Entry, other: _Entry) -> bool:
    if stat.S_IFMT(one.mode) != stat.S_IFMT(other.mode):
        return False
    if stat.S_ISLNK(one.mode):
        return one.path.readlink() == other.path.readlink()
    if not stat.S_ISREG(one.mode):
        return True
    if one.num_bytes != other.num_bytes:
        return False
    if one.num_bytes > MOST_BYTES:
        # Copies keep the times of what they are copies of.
        return one.changed_ns == other.changed_ns
    return _read(one) == _read(other)


def _difference(path: str, one: _Entry | None, other: _Entry | None, lines_left: int) -> Difference:
    change: Change = "changed"
    if one is None:
        change = "added"
    elif other is None:
        change = "removed"
    lines, note = _lines(one, other, lines_left)
    return Difference(
        path=path,
        change=change,
        before_bytes=None if one is None else one.num_bytes,
        after_bytes=None if other is None else other.num_bytes,
        lines=lines,
        note=note,
    )


def _lines(
    one: _Entry | None, other: _Entry | None, lines_left: int
) -> tuple[tuple[str, ...] | None, str | None]:
    for entry in (other, one):
        if entry is not None and (note := _unreadable(entry)) is not None:
            return None, note
    sides = []
    for entry in (one, other):
        text = "" if entry is None else _text(entry)
        if text is None:
            return None, "not text"
        sides.append(text.splitlines())
    if sum(map(len, sides)) > lines_left:
        return None, "more lines than are shown"
    before, after = sides
    compared = difflib.unified_diff(before, after, lineterm="", n=CONTEXT_LINES)
    return tuple(line for at, line in enumerate(compared) if at > 1), None


def _unreadable(entry: _Entry) -> str | None:
    if stat.S_ISLNK(entry.mode):
        to = os.fsencode(entry.path.readlink()).decode(errors="replace")
        return f"a link to {to}"
    if not stat.S_ISREG(entry.mode):
        return "not a plain file"
    return "too large to show" if entry.num_bytes > MOST_BYTES else None


def _read(entry: _Entry) -> bytes | None:
    """Its beginning, or None where it cannot be read; one byte more than fits says that it goes on.

    Opened without following a link that took its place meanwhile.
    """
    try:
        opened = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(opened, "rb") as file:
        return file.read(MOST_BYTES + 1)


def _text(entry: _Entry) -> str | None:
    data = _read(entry)
    if data is None or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


FROZEN = "frozen"
MAX_TAIL_BYTES = 64 * 1024
"""Of what a program printed, its end: that is where it says what became of it."""

Plain = dict[str, Any]


def leavings(attempt: Path) -> Plain | None:
    """Of an execution's folder, as far as it has come; None where there is none."""
    if not (attempt / ORDER_FILE).is_file():
        return None
    order = read_order(attempt / ORDER_FILE)
    entries = facts.read(attempt)
    return {
        "task": order.task.id,
        "instruction": order.task.instruction,
        "harness": list(order.harness),
        "agent_s": order.agent_s,
        "overall_s": order.overall_s,
        "facts": [{"at": entry.at, "fact": type(entry.fact).__name__} for entry in entries],
        **_outcome(facts.read_outcome(attempt)),
        "assessments": _assessments(entries),
        "output": _end_of(attempt / OUTPUT_FILE),
        "evaluation": _end_of(attempt / EVALUATION_FILE),
        "workspace": _workspace(order, attempt),
    }


def _outcome(record: OutcomeRecord | None) -> Plain:
    """How it ended and what it closed as; nothing but None while it runs."""
    closed = None if record is None else record.closed
    ended = None if record is None else record.terminated
    return {
        "ending": None if ended is None else ended.ending.value,
        "ending_reason": None if ended is None else ended.reason,
        "elapsed_s": None if ended is None else ended.elapsed_s,
        "outcome": None if closed is None else closed.outcome.value,
        "outcome_reason": None if closed is None else closed.reason,
        "score": None if closed is None else closed.score,
    }


def _assessments(entries: Sequence[facts.FactEntry]) -> list[Plain]:
    """Every attempt in order; those of a step that others may follow say which."""
    found = []
    for entry in entries:
        match entry.fact:
            case StepAssessed(step=step, assessment=one):
                found.append({"at": entry.at, "step": step, **_assessment(one)})
            case Assessed(assessment=one):
                found.append({"at": entry.at, "step": None, **_assessment(one)})
    return found


def _assessment(one: Assessment) -> Plain:
    return {**asdict(one), "status": one.status.value}


def _workspace(order: ExecutionSpec, attempt: Path) -> Plain | None:
    """What became of the task's files; None where nothing is kept."""
    frozen = attempt / FROZEN
    if frozen.is_symlink() or not frozen.is_dir():
        return None
    before = None if order.task.files is None else Path(order.task.files)
    is_known = before is None or before.is_dir()
    found = differences(before if is_known else None, frozen)
    return {**asdict(found), "is_begin_known": is_known}


def _end_of(path: Path) -> Plain | None:
    """The last of what was printed, as text; None where nothing was kept."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_TAIL_BYTES))
            data = file.read(MAX_TAIL_BYTES)
    except FileNotFoundError:
        return None
    return {
        "text": data.decode(errors="replace"),
        "left_out_bytes": max(0, size - MAX_TAIL_BYTES),
    }


MOST_KEPT = 4
"""Trees that are kept, because a page that shows one asks for its calls one by one."""


@dataclass(frozen=True, slots=True)
class _Kept:
    stamp: tuple[int, int]
    """Size and time of the log, by which a tree is known to be out of date."""
    loaded: LoadedExecution


class RunTrees:
    """The trajectory trees of one run folder's executions, in plain values.

    A name that the run does not have raises ConfigError, and a log that cannot be read
    LogDamaged. All of it may be asked from several threads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = Lock()
        self._rule = _rule_of(folder)

    def tree(self, execution: str) -> Plain:
        """Its boxes, and the draw that the run makes of it."""
        return tree_data(self._loaded(execution), self._rule)

    def call(self, execution: str, number: int) -> Plain:
        """One of its calls, to be read."""
        loaded = self._loaded(execution)
        model = loaded.tree.opened.model if loaded.tree.opened else None
        vocabulary = None if model is None else vocabulary_of(model)
        return call_data(loaded, number, self._rule, vocabulary=vocabulary)

    def left(self, execution: str) -> Plain:
        """What it left behind, where the run keeps that."""
        return {"left": leavings(self._folder / "attempts" / _name(execution))}

    def _loaded(self, execution: str) -> LoadedExecution:
        path = call_log.path_of(self._folder, _name(execution))
        try:
            status = path.stat()
        except OSError as error:
            raise ConfigError(f"{self._folder}: no execution {execution} with calls") from error
        stamp = (status.st_size, status.st_mtime_ns)
        with self._lock:
            kept = self._kept.pop(execution, None)
            if kept is None or kept.stamp != stamp:
                kept = _Kept(stamp, load(path))
            self._kept[execution] = kept
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return kept.loaded


@cache
def vocabulary_of(model: str) -> Vocabulary | None:
    """The tokenizer that an execution was recorded with, if its file is still there."""
    known = known_models().get(model)
    place = Path(model) if known is None else known.folder
    file = place / "tokenizer.json" if place.is_dir() else place
    if not file.is_file():
        return None
    tokens = PackageTokenizer.load(file, name=str(file))
    return Vocabulary(decode=tokens.decode, special=frozenset(tokens.added.values()))


def _name(execution: str) -> str:
    """A name that stays within the run's folders."""
    if not execution or execution.startswith(".") or "/" in execution or "\0" in execution:
        raise ConfigError(f"expected the name of an execution, found {execution!r}")
    return execution


def _rule_of(folder: Path) -> SelectionRule:
    """Seed and J_max of the run file; without it, their defaults."""
    run, draw = RunInfoConfig(), SelectionConfig()
    if (folder / RUN_FILE).is_file():
        sections = load_file(folder / RUN_FILE).sections
        run, draw = sections.get("run", run), sections.get("draw", draw)
    return SelectionRule(seed=run.seed, max_trajectories=draw.limit)
