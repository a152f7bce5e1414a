"""Names of models and the folders behind them."""

from pathlib import Path

import pytest

from gyre.model.registry import known_models, model_folder
from gyre.renderers.registry import load_renderer
from gyre.types.errors import ModelError


def test_tiny_is_part_of_the_package_and_under_two_megabytes():
    folder = model_folder("tiny")
    sizes = [path.stat().st_size for path in folder.iterdir()]

    assert known_models()["tiny"].is_there
    assert sum(sizes) < 2 * 2**20


def test_anything_but_a_known_name_is_a_path():
    assert Path("./tiny") == model_folder("./tiny")
    assert Path("some/where") == model_folder("some/where")


def test_a_model_that_was_not_fetched_says_how_to_fetch_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(ModelError, match=r"smollm2: not found at .*gyre model fetch smollm2"):
        model_folder("smollm2")


def test_the_renderer_of_tiny_is_found_by_its_name():
    assert "chatml" == load_renderer("tiny").name
