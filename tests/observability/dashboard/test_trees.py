"""Trees of a run folder, asked for by name."""

import pytest
from tests.observability.conftest import Story

from gyre.observability.dashboard.execution_view import RunTrees, vocabulary_of
from gyre.types.errors import ConfigError, LogDamaged


@pytest.fixture
def history(tmp_path):
    history = Story(model="tiny")
    vocabulary = vocabulary_of("tiny")
    assert vocabulary is not None
    first = history.call(1, 0, {"system": [sorted(vocabulary.special)[0], 40]}, [41, 42])
    history.call(2, first, {"tool": [43]}, [44])
    history.write(tmp_path)
    return history


def test_a_tree_and_its_calls_are_told_with_the_models_own_tokenizer(history, tmp_path):
    trees = RunTrees(tmp_path)
    decode = vocabulary_of("tiny").decode
    one = trees.call("x", 1)

    assert [[1, 2]] == [box["calls"] for box in trees.tree("x")["boxes"] if "calls" in box]
    assert ["template", "harness"] == [run["source"] for run in one["messages"][0]["runs"]]
    assert decode([41, 42]) == "".join(one["reply"]["pieces"])


def test_the_draw_is_what_the_run_was_told(history, tmp_path):
    (tmp_path / "run.toml").write_text(
        '[run]\nseed = 7\n[model]\nname = "tiny"\n[draw]\nmax_trajectories = "all"\n'
    )

    assert {"seed": 7, "max_trajectories": None} == RunTrees(tmp_path).tree("x")["draw"]


def test_a_run_without_its_file_has_the_defaults(history, tmp_path):
    assert {"seed": 0, "max_trajectories": 5} == RunTrees(tmp_path).tree("x")["draw"]


def test_a_log_that_grew_is_read_again(history, tmp_path):
    trees = RunTrees(tmp_path)
    before = trees.tree("x")["summary"]["calls"]
    (tmp_path / "executions" / "x.calls").unlink()
    history.call(3, 4, {"tool": 2}, 3)
    history.write(tmp_path)

    assert (2, 3) == (before, trees.tree("x")["summary"]["calls"])


def test_few_trees_are_kept_and_all_can_be_read(tmp_path):
    names = [f"e{number}" for number in range(7)]
    for name in names:
        history = Story(execution=name)
        history.call(1, 0, {"system": 1}, 1)
        history.write(tmp_path)
    trees = RunTrees(tmp_path)

    assert names * 2 == [trees.tree(name)["summary"]["execution"] for name in names * 2]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0b", "absent"])
def test_names_that_are_no_executions_are_refused(history, tmp_path, name):
    with pytest.raises(ConfigError):
        RunTrees(tmp_path).tree(name)


def test_a_damaged_log_is_named(history, tmp_path):
    path = tmp_path / "executions" / "x.calls"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))

    with pytest.raises(LogDamaged, match=r"x\.calls"):
        RunTrees(tmp_path).tree("x")


def test_an_execution_whose_folder_is_gone_left_nothing(history, tmp_path):
    assert {"left": None} == RunTrees(tmp_path).left("x")


def test_a_model_that_is_gone_has_no_vocabulary():
    assert None is vocabulary_of("/nowhere/model")
