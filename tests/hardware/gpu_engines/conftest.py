"""SGLang on a GPU runs with -m "engines and gpu" only; what it kept and what not is noted."""

import os
import sys
from collections.abc import Generator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

# Before the modules below, because neither these folders nor the benchmarks are installed.
sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

from benchmarks.peers import results
from real import result

NAME = "gpu-engines"
FROM_FOLDER = ("sglang", "sglang-kernel", "torch-memory-saver", "transformers")
REPORTS = pytest.StashKey[dict[str, "dict[str, Any]"]]()
"""Of each promise: whether it was kept, how long that took, and what it recorded."""
LOAD = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu engines")
    group.addoption("--sglang", type=Path, help="folder that scripts/engines_gpu unpacked")
    group.addoption("--of-commit", help="of the sources, where there is no repository to ask")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORTS] = {}
    config.stash[LOAD] = os.getloadavg()[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    ours = item.get_closest_marker("engines") is not None
    if ours and (report.when == "call" or report.failed):
        item.config.stash[REPORTS][item.name] = {
            "promise": item.name.removeprefix("test_"),
            "kept": report.passed,
            "seconds": round(report.duration, 2),
        } | dict(report.user_properties)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Also where promises are broken, because how far it got is what is asked."""
    found = list(session.config.stash[REPORTS].values())
    folder = session.config.getoption("--sglang", default=None)
    if not found or folder is None:
        return
    import torch

    found_there = distributions(path=[str(folder)])
    there = {one.name.lower().replace("_", "-"): one.version for one in found_there}
    versions = {name: there[name] for name in FROM_FOLDER} | {"torch": torch.__version__}
    results.write(
        NAME,
        samples={f"sglang-{there['sglang']}": found},
        settings={
            "device": "cuda",
            "dtype": "bfloat16",
            "adapters": result.digest_of("cell-engines"),
        },
        packages={"sglang": versions},
        load_average=(session.config.stash[LOAD], os.getloadavg()[0]),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        commit=session.config.getoption("--of-commit"),
    )
