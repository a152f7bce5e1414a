"""The trees of a run's executions for whoever looks at them, with what each one left behind."""

from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from gyre.config.loader import load as load_file
from gyre.config.run_sections import RunInfoConfig, SelectionConfig
from gyre.model.registry import known_models
from gyre.observability.dashboard.leavings import leavings
from gyre.observability.inspect.branches import SelectionRule, tree_data
from gyre.observability.inspect.call_view import Vocabulary, call_data
from gyre.renderers.tokens import PackageTokenizer
from gyre.storage import call_log as calls
from gyre.storage.plan_file import RUN_FILE
from gyre.trajectory.loading import LoadedExecution, load
from gyre.types.errors import ConfigError

MOST_KEPT = 4
"""Trees that are kept, because whoever reads one asks for its calls one by one."""

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Kept:
    stamp: tuple[int, int]
    """Size and time of the log, by which a tree is known to be out of date."""
    loaded: LoadedExecution


class RunTrees:
    """Every execution of one run folder, in plain values.

    Whatever is asked for by a name that the run does not have raises ConfigError, and a log that
    cannot be read LogDamaged. All of it may be asked from several threads.
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
        path = calls.path_of(self._folder, _name(execution))
        try:
            status = path.stat()
        except OSError as error:
            message = f"{self._folder}: no execution {execution} with calls"
            raise ConfigError(message) from error
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
        message = f"expected the name of an execution, found {execution!r}"
        raise ConfigError(message)
    return execution


def _rule_of(folder: Path) -> SelectionRule:
    """Seed and J_max as the run was told; without its file what a run has that is told nothing."""
    run, draw = RunInfoConfig(), SelectionConfig()
    if (folder / RUN_FILE).is_file():
        sections = load_file(folder / RUN_FILE).sections
        run, draw = sections.get("run", run), sections.get("draw", draw)
    return SelectionRule(seed=run.seed, max_trajectories=draw.limit)
