"""A run whose cells do not fit is refused before any of them is started."""

import pytest
from tests.config.support.tables import read

from gyre.controller.main import check_layout, num_devices
from gyre.types.errors import ConfigError, ModelError


def test_cells_that_fit_their_model_may_start():
    check_layout(read("cells.stages=2", "model.device=cpu"))


def test_cells_that_do_not_fit_are_refused_with_their_file_and_every_mistake():
    loaded = read("cells.stages=99", "cells.contexts=2", "model.device=cpu")
    with pytest.raises(ConfigError) as error:
        check_layout(loaded)

    first, *lines = str(error.value).splitlines()
    assert "run.toml: 2 mistakes" == first
    assert ["cells.stages", "cells.contexts"] == [one.strip().partition(":")[0] for one in lines]


def test_a_run_that_began_with_another_sampling_goes_on_with_it_and_says_so(capsys):
    """What it has sampled so far would be lost otherwise, and no resume may change it."""
    loaded = read("sampling.top_p=0.95", "model.device=cpu")
    with pytest.raises(ConfigError, match=r"sampling\.top_p: expected 1 "):
        check_layout(loaded)
    check_layout(loaded, resumes=True)

    assert "sampling.top_p: expected 1 " in capsys.readouterr().err


def test_a_model_that_is_not_there_is_refused():
    with pytest.raises(ModelError, match="found no folder"):
        check_layout(read("model.name=nowhere"))


def test_devices_are_counted_by_their_numbers(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()

    assert 3 == num_devices(tmp_path)
