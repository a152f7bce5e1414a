"""Agent programs are installed once per version, whole or not at all."""

import json
import os
from dataclasses import replace

import pytest
from tests.harnesses.support.installed import INSTALLS, TOY, npm_on_path

from gyre.harnesses.install import prepare
from gyre.harnesses.program import Pip
from gyre.harnesses.registry import RECORD, find, folder_for
from gyre.types.errors import HarnessError


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def test_a_program_is_installed_once_and_found_again(root, tmp_path, monkeypatch):
    npm = npm_on_path(tmp_path / "bin", monkeypatch)
    first = prepare(TOY, "1.2.3", root)
    second = prepare(TOY, "1.2.3", root)

    assert first == second == find(TOY, "1.2.3", root)
    assert 1 == len((npm / "asked").read_text().splitlines())
    assert (npm / "asked").read_text().startswith("install --ignore-scripts ")
    assert {"toy": "npm:@maker/toy@1.2.3"} == json.loads((npm / "package.json").read_text())[
        "dependencies"
    ]
    assert (str(root / "toy-1.2.3" / "node_modules/toy/toy"),) == first.argv
    assert (str(root / "toy-1.2.3"),) == first.layers
    assert first.said.startswith("toy 1.2.3 of ")
    assert str(tmp_path.home()) not in first.said
    assert ["toy-1.2.3"] == [one.name for one in root.iterdir()]


def test_what_is_installed_is_read_only(root, tmp_path, monkeypatch):
    npm_on_path(tmp_path / "bin", monkeypatch)
    folder = prepare(TOY, "1.2.3", root).folder
    files = [path for path in folder.rglob("*") if path.is_file()]

    assert {0} == {path.stat().st_mode & 0o222 for path in files}
    assert os.access(folder / "node_modules/toy/toy", os.X_OK)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such package >&2; exit 7", "ended with status 7: no such package"),
        (INSTALLS.replace("1.2.3", "9.9.9"), "it says that it is 'toy 9.9.9"),
        (INSTALLS + "echo 'exit 3' > node_modules/toy/toy", "node_modules/toy/toy"),
        (":", "No such file or directory"),
    ],
)
def test_what_cannot_be_installed_leaves_nothing(root, tmp_path, monkeypatch, script, said):
    npm_on_path(tmp_path / "bin", monkeypatch, script)
    with pytest.raises(HarnessError) as refused:
        prepare(TOY, "1.2.3", root)

    assert said in str(refused.value)
    assert [] == list(root.iterdir())


def test_without_npm_it_is_said_what_is_missing(root, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HarnessError, match="expected npm on the path"):
        prepare(TOY, "1.2.3", root)


def test_a_broken_folder_is_replaced(root, tmp_path, monkeypatch):
    npm_on_path(tmp_path / "bin", monkeypatch)
    folder = prepare(TOY, "1.2.3", root).folder
    (folder / "node_modules/toy/toy").unlink()
    lost = find(TOY, "1.2.3", root)
    prepare(TOY, "1.2.3", root)

    assert lost is None
    assert find(TOY, "1.2.3", root) is not None


def test_an_installation_that_came_first_stays(root, tmp_path, monkeypatch):
    """As when two start at once and one is slower."""
    other = folder_for(TOY, "1.2.3", root)
    made = f"mkdir -p {other}; cp -r node_modules {other}; "
    record = f"""echo '{{"said": "first", "layers": []}}' > {other / RECORD}"""
    npm_on_path(tmp_path / "bin", monkeypatch, INSTALLS + made + record)

    assert "first" == prepare(TOY, "1.2.3", root).said
    assert ["toy-1.2.3"] == [one.name for one in root.iterdir()]


@pytest.mark.slow
def test_a_python_program_has_an_environment_of_its_own_and_names_its_interpreter(root):
    """Whose folder a sandbox must show, wherever it is."""
    snake = replace(
        TOY,
        name="snake",
        # Already in every environment, so that nothing is fetched.
        source=Pip(requirements=("pip",)),
        start=("venv/bin/python",),
        asks_version=("-c", "import sys; print('1.2.3', sys.prefix)"),
    )
    made = prepare(snake, "1.2.3", root)
    interpreter = (made.folder / "venv/bin/python").resolve()

    assert str(made.folder) == made.layers[0]
    assert any(interpreter.is_relative_to(one) for one in (*made.layers[1:], "/usr"))
