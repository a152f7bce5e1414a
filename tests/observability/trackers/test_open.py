"""Trackers are loaded when a run file asks for them, and not before."""

import sys

import pytest
from tests.observability.support import event_files

from gyre.config.run_config import TrackersConfig
from gyre.observability.trackers.registry import kept_id, open_trackers
from gyre.types.errors import ConfigError

EXTRAS = ("wandb", "mlflow", "trackio")


def test_event_files_are_written_unless_a_file_says_otherwise(tmp_path):
    trackers = open_trackers(TrackersConfig(), name="small", folder=tmp_path)
    trackers.log({"train/loss": 0.5}, step=3)
    trackers.close()

    (one,) = event_files.logged(tmp_path / "tensorboard")
    assert ("train/loss", 3, 0.5, ()) == (one.name, one.step, one.value, trackers.warnings)


def test_without_trackers_nothing_is_written(tmp_path):
    section = TrackersConfig(tensorboard=False)
    trackers = open_trackers(section, name="small", folder=tmp_path)
    trackers.log({"train/loss": 0.5}, step=3)
    trackers.close()

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", EXTRAS)
def test_a_library_that_is_not_there_is_named_with_what_to_install(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    monkeypatch.delitem(sys.modules, f"gyre.observability.trackers.{kind}", raising=False)
    hint = f"trackers.{kind} needs {kind}: pip install 'gyre-rl[{kind}]'"
    with pytest.raises(ConfigError) as error:
        open_trackers(TrackersConfig(**{kind: True}), name="small", folder=tmp_path)

    assert hint == str(error.value)
    assert [] == list(tmp_path.iterdir())


def test_a_library_that_lacks_another_is_not_called_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    monkeypatch.delitem(sys.modules, "gyre.observability.trackers.tensorboard", raising=False)
    with pytest.raises(ModuleNotFoundError, match="tensorboardX"):
        open_trackers(TrackersConfig(), name="small", folder=tmp_path)


def test_every_tracker_of_the_run_file_has_its_module():
    asked = TrackersConfig(**dict.fromkeys(("tensorboard", *EXTRAS), True))

    assert ("tensorboard", *EXTRAS) == asked.kinds
    assert {"tensorboard"} == set(TrackersConfig().kinds)


def test_a_run_is_known_by_one_id_however_often_it_is_opened(tmp_path):
    first = kept_id(tmp_path / "new" / "run")

    assert first == kept_id(tmp_path / "new" / "run")
    assert first != kept_id(tmp_path / "other")
    assert len(first) == 12


def test_an_id_that_was_cut_off_is_made_again(tmp_path):
    (tmp_path / "tracked-as").write_text("")

    assert 12 == len(kept_id(tmp_path))
