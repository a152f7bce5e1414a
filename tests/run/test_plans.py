"""What a run file means for an execution."""

import pytest
from tests.backends.harnesses.installed import pretend_prepared
from tests.config.tables import read

from gyre.backends.harnesses.prepared import PROGRAMS
from gyre.run.plans import order_for
from gyre.words.errors import ConfigError
from gyre.words.tasks import Evaluation, Task

TASK = Task(id="t", instruction="go", files=None, evaluation=Evaluation(argv=("true",)))


def order(**changes):
    return order_for(read(**changes).config, "e", TASK, url="http://here", facts_url="http://desk")


def test_a_command_goes_into_the_order_as_it_is():
    made = order(harness={"argv": ["agent", "{instruction}"], "env": {"A": "b"}})

    assert (("agent", "{instruction}"), {"A": "b"}) == (made.harness, made.variables)
    assert ({}, ()) == (made.home, made.layers)


def test_an_installed_program_is_told_the_window_of_the_proxy(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = pretend_prepared(PROGRAMS["codex"], tmp_path / ".cache/gyre/harnesses")
    made = order(
        harness={"kind": "codex"},
        proxy={"context_tokens": 50_000},
        sampling={"max_tokens": 10_000},
    )
    config = made.home[".codex/config.toml"]

    assert made.harness[0].startswith(str(folder))
    assert str(folder) in made.layers
    assert "model_context_window = 50000\n" in config
    assert "model_auto_compact_token_limit = 40000\n" in config


def test_a_program_that_is_not_installed_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="gyre harness prepare codex"):
        order(harness={"kind": "codex"})
