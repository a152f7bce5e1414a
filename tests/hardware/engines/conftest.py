"""Real engines run with -m engines only; a run in which every promise is kept is written down."""

import os
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Before the modules below, because neither this folder nor the benchmarks are installed.
sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parent))

from real import installed, result

PROMISED = pytest.StashKey[set[str]]()
"""Every test of real engines there is, selected or not."""
KEPT = pytest.StashKey[dict[str, "dict[str, Any]"]]()
"""Of each test that passed: its engine, and the numbers it recorded."""
LOAD = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PROMISED] = set()
    config.stash[KEPT] = {}
    config.stash[LOAD] = os.getloadavg()[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = (item for item in items if item.get_closest_marker("engines") is not None)
    config.stash[PROMISED] |= {item.nodeid for item in ours}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.passed and item.nodeid in item.config.stash[PROMISED]:
        about = dict(report.user_properties)
        item.config.stash[KEPT][item.nodeid] = {"promise": _promise(item), **about}
    return report


def _promise(item: pytest.Function) -> str:
    """The test's name, with that of the promise it is given and how it is kept."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    found = [one for name, one in sorted(given.items()) if name in ("how", "promise")]
    names = [one if isinstance(one, str) else one.__name__ for one in found]
    return " ".join([item.originalname, *reversed(names)])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A result is of all promises of its name, or is none."""
    promised, kept = session.config.stash[PROMISED], session.config.stash[KEPT]
    for name in result.ENGINES:
        files = {file for file, group in result.GROUPS.items() if group == name}
        ours = {one for one in promised if _file(one) in files}
        if files == {_file(one) for one in ours} and ours <= kept.keys():
            _write(name, [kept[one] for one in sorted(ours)], session.config.stash[LOAD])


def _file(nodeid: str) -> str:
    return Path(nodeid.partition("::")[0]).name


def _write(name: str, kept: list[dict[str, Any]], load_before: float) -> None:
    samples: dict[str, dict[str, Any]] = defaultdict(lambda: {"promises": []})
    for about in kept:
        found = samples[about.pop("engine")]
        found["promises"].append(about.pop("promise"))
        found.update(about)
    python = {one: (installed.python(one), _distributions(one)) for one in samples}
    load = (load_before, os.getloadavg()[0])
    result.write(name, samples, result.versions(python), load)


def _distributions(engine: str) -> list[str]:
    return [installed.installer().ENGINES[engine], "torch", "transformers"]
