"""What a run file means for an execution and for a cell."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.config.support.tables import read
from tests.harnesses.support.installed import pretend_prepared

from gyre.controller.process_specs import cell_plan, order_for
from gyre.controller.run_dir import RunDir
from gyre.harnesses.registry import PROGRAMS
from gyre.types.errors import ConfigError
from gyre.types.tasks import EvaluationRule, Task

TASK = Task(id="t", instruction="go", files=None, evaluation=EvaluationRule(argv=("true",)))


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


def cell(number, **changes):
    places = RunDir(run=Path("run"), share=Path("share"))
    return cell_plan(read(**changes).config, places, number)


def test_a_cell_of_a_cluster_has_the_cores_that_are_kept_for_it():
    kept = {"kind": "ray", "cell_cpus": 12.0}
    cells = {"count": 2, "capacity": 4, "stages": 3, "standalone": [4]}

    assert (4, 12) == tuple(cell(one, cluster=kept, cells=cells).threads for one in (0, 2))


@pytest.mark.parametrize(
    ("ranks", "doors", "expected"),
    [(3, "", [None] * 3), (4, "a", [None, None, "a", "a"]), (5, "ab", [None, None, "a", "a", "b"])],
)
def test_ranks_are_dealt_out_to_nodes_in_order(ranks, doors, expected):
    plan = replace(cell(0, cells={"count": 1, "capacity": 4, "stages": ranks}), doors=tuple(doors))

    assert expected == [plan.node_agent_of(rank) for rank in range(ranks)]


def test_ranks_of_a_node_sit_side_by_side():
    plan = cell(0, cells={"count": 1, "capacity": 4, "stages": 5})

    assert [0, 1, 2, 3, 4] == [plan.local_rank(rank) for rank in range(5)]
    plan = replace(plan, doors=("a", "b"))
    assert [0, 1, 0, 1, 0] == [plan.local_rank(rank) for rank in range(5)]


def test_a_rank_is_reached_where_its_door_is():
    plan = cell(0, cells={"count": 1, "capacity": 4, "stages": 4})
    plan = replace(plan, host="10.0.0.1", doors=("10.0.0.2:7001",))

    assert ["10.0.0.1"] * 2 + ["10.0.0.2"] * 2 == [plan.host_of(rank) for rank in range(4)]
