"""Light commands stay light: what only looks at files loads no network stack and no model code."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = {"torch", "transformers", "jax", "tensorflow"}
EXTRAS = {"matplotlib", "mlflow", "pyarrow", "tensorboardX", "trackio", "wandb"}
SERVING = {"aiohttp", "renderers", "tokenizers", "uvicorn", "uvloop"}

CHECK = "from gyre.cli.main import main; main(['config', 'check', 'examples/run.toml'])"

WATCH = """
import importlib.abc, sys

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        tried.add(name.partition(".")[0])

tried = set()
sys.meta_path.insert(0, Watch())
try:
    {code}
except SystemExit:
    pass
print("tried:", *sorted(tried))
"""


def tried(code):
    """Top-level packages that running the code tried to import, installed or not."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH.format(code=code)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_the_package_imports_nothing_else():
    assert {"gyre"} == tried("import gyre") - sys.stdlib_module_names


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["proxy", "--help"],
        ["serve", "--help"],
        ["inspect", "--help"],
        ["export", "--help"],
        ["inspect", "no-such-run"],
        ["open", "no-such-run"],
        ["model", "list"],
        ["report", "--help"],
        ["simulate", "--help"],
        ["simulate", "no-such-file"],
        ["simulate", "examples/simulate.toml"],
        ["config", "--help"],
        ["config", "check", "examples/run.toml"],
        ["config", "schema"],
        ["config", "explain", "schedule"],
        ["plan", "--help"],
        [
            *["plan", "--cells", "1", "--capacity", "4", "--hours", "1", "--steps", "1"],
            *["--groups-per-batch", "1", "--executions-per-group", "2", "--staleness", "0"],
        ],
    ],
    ids=" ".join,
)
def test_light_commands_load_neither_models_nor_servers(arguments):
    loaded = tried(f"from gyre.cli.main import main; main({arguments!r})")

    assert "gyre" in loaded
    assert set() == loaded & (HEAVY | SERVING | EXTRAS)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["config", "--help"], ["config", "explain", "schedule"], ["proxy", "--help"]],
    ids=" ".join,
)
def test_what_reads_no_run_file_does_not_load_what_checks_it(arguments):
    assert "pydantic" not in tried(f"from gyre.cli.main import main; main({arguments!r})")


def test_reading_a_run_file_loads_what_checks_it():
    assert "pydantic" in tried(CHECK)


@pytest.mark.parametrize("module", ["gyre.proxy.main", "gyre.controller.main"])
def test_the_proxy_and_the_controller_load_no_model_code(module):
    loaded = tried(f"import {module}")

    assert SERVING - {"renderers", "tokenizers"} <= loaded
    assert set() == loaded & HEAVY


def test_the_watch_sees_an_import_of_what_is_not_installed():
    assert "torch" in tried("\n    try: import torch\n    except ImportError: pass")
