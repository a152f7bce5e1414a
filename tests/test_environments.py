"""Environments of scripts are in the cache whole or not at all, whoever else installs them."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "environments.py"


@pytest.fixture(scope="module")
def environments():
    spec = importlib.util.spec_from_file_location("environments", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_made_says_what_it_holds(environments, tmp_path):
    def build(folder):
        (folder / "venv").mkdir()
        return {"ray": "1.0"}

    environments.make(tmp_path / "cluster-0", build)

    assert environments.is_there(tmp_path / "cluster-0")
    assert {"ray": "1.0"} == json.loads((tmp_path / "cluster-0" / "versions.json").read_text())
    assert ["cluster-0"] == [one.name for one in tmp_path.iterdir()]


def test_an_installation_that_fails_leaves_nothing(environments, tmp_path):
    def build(folder):
        (folder / "half").mkdir()
        raise RuntimeError("no such wheel")

    with pytest.raises(RuntimeError, match="no such wheel"):
        environments.make(tmp_path / "cluster-0", build)

    assert [] == list(tmp_path.iterdir())


def test_who_comes_second_leaves_what_is_there(environments, tmp_path):
    def second(folder):
        environments.make(tmp_path / "cluster-0", lambda _: {"who": "first"})
        return {"who": "second"}

    environments.make(tmp_path / "cluster-0", second)

    assert {"who": "first"} == json.loads((tmp_path / "cluster-0" / "versions.json").read_text())


def test_another_pin_is_another_folder(environments, tmp_path, monkeypatch):
    monkeypatch.setenv("GYRE_CACHE", str(tmp_path / "cache"))
    pins = tmp_path / "pins.txt"
    pins.write_text("ray==1.0\n")
    before = environments.folder_for("cluster", [pins])
    elsewhere = environments.folder_for("cluster", [pins], "/other/packages")
    pins.write_text("ray==1.1\n")
    after = environments.folder_for("cluster", [pins])

    assert {tmp_path / "cache"} == {one.parent for one in (before, elsewhere, after)}
    assert 3 == len({before, elsewhere, after})
    assert before.name.startswith("cluster-")
