"""Gyre as `pip install .` leaves it, without extras: what computes with models says what to add."""

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

import gyre

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ABSENT = ("torch", "transformers", "functorch", "gyre", "__editable__", "distutils-precedence")
"""What the names of packages begin with that are not installed there."""
HINT = "pip install 'gyre-rl[torch]'"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter with the packages of this one, but for torch and transformers."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in map(Path, site.getsitepackages()):
        for one in found.iterdir():
            place = packages / one.name
            if not one.name.startswith(ABSENT) and not place.exists():
                place.symlink_to(one)
    return folder / "bin" / "python"


@pytest.fixture
def bare(python, tmp_path):
    """Runs a command there; its run folders would lie in `runs`."""

    def run(*arguments):
        return subprocess.run(
            [python, "-m", "gyre", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(Path(gyre.__file__).parents[1])},
        )

    return run


def test_torch_is_there_where_these_tests_run_and_not_there(python):
    look = "import importlib.util as u; print(u.find_spec('torch') is None)"
    found = [
        subprocess.run([one, "-c", look], capture_output=True, text=True, check=True).stdout
        for one in (sys.executable, python)
    ]

    assert ["False\n", "True\n"] == found


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["config", "check", "examples/quickstart.toml"], "training"),
        (["model", "show", "tiny"], "show"),
        (["model", "fetch", "smollm2"], "fetch"),
        (["serve", "tiny"], "serving"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_a_command_that_needs_torch_says_so_in_one_line(bare, command, what):
    done = bare(*command)

    assert (2, "") == (done.returncode, done.stdout)
    assert f"gyre {command[0]}: {what} needs torch: {HINT}\n" == done.stderr


def test_a_run_begins_nothing(bare, tmp_path):
    folder = tmp_path / "run"
    done = bare("train", "examples/quickstart.toml", f"run.folder={folder}")

    assert (2, "") == (done.returncode, done.stdout)
    assert f"gyre train: training needs torch: {HINT}\n" == done.stderr
    assert not folder.exists()


def test_a_rollout_with_an_engine_of_its_own_begins_nothing(bare, tmp_path):
    folder = tmp_path / "rollout"
    tasks = "examples/quickstart/tasks.jsonl"
    done = bare("evaluate", "tiny", tasks, "--run", folder, "--harness", "codex")

    assert (2, "") == (done.returncode, done.stdout)
    assert f"gyre evaluate: an engine that is started here needs torch: {HINT}\n" == done.stderr
    assert not folder.exists()


def test_what_only_looks_needs_no_torch(bare):
    assert 0 == bare("model", "list").returncode
    assert 0 == bare("simulate", "examples/simulate.toml", "schedule.steps=3").returncode


def test_readme_says_how_to_install_it():
    assert "pip install '.[torch]'" in (ROOT / "README.md").read_text()
