"""Groups that run by hand: what they kept is written down, and a test says when it is stale."""

import json
import os
import re
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.results import RESULTS

ROOT = Path(__file__).parents[1]
Write = Callable[[Mapping[str, float], tuple[float, float]], object]
"""Of each test that passed the seconds it took, and the load before and after."""
_ROW = re.compile(r"^\| (\w{16}) \| (\w{16}) \| .{40,} \|$", re.MULTILINE)


class Promises:
    """A plugin: a run in which every test of a marker was selected and passed is written down."""

    def __init__(self, marker: str, write: Write) -> None:
        self._marker = marker
        self._write = write
        self._promised: set[str] = set()
        self._files: set[Path] = set()
        """All that tests were collected from."""
        self._kept: dict[str, float] = {}
        self._load = os.getloadavg()[0]

    def _folders(self) -> set[Path]:
        return {path.parent for path in self._files}

    def is_ours(self, item: pytest.Item) -> bool:
        return item.get_closest_marker(self._marker) is not None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before any of them is left out."""
        self._promised |= {item.nodeid for item in items if self.is_ours(item)}
        self._files |= {item.path for item in items}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" and report.passed and item.nodeid in self._promised:
            self._kept[item.nodeid] = report.duration
        return report

    def pytest_sessionfinish(self) -> None:
        """A result is of all promises or is none, and of all files of their folders."""
        there = {one for folder in self._folders() for one in folder.glob("test_*.py")}
        if self._kept and self._promised == set(self._kept) and there <= self._files:
            self._write(self._kept, (self._load, os.getloadavg()[0]))


def by_name(seconds: Mapping[str, float]) -> dict[str, float]:
    """The same by the names of tests alone, as a result has them."""
    return {name.rpartition("::")[2]: round(spent, 1) for name, spent in seconds.items()}


def newest(
    name: str, folder: Path = RESULTS, *, such: Callable[[Any], bool] = lambda _: True
) -> dict[str, Any]:
    """The latest result of this name."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    ours = [one for one in found if one["name"] == name and such(one)]
    assert ours, f"{folder}: no result {name}"
    return max(ours, key=lambda one: str(one["at"]))


def holding(measured: str, table: Path) -> set[str]:
    """What was measured, and later digests for which the table says why no result has moved."""
    rows = _ROW.findall(table.read_text())
    return {measured, *(now for then, now in rows if then == measured)}
