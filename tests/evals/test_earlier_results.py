"""What a rollout finds in its folder when it goes on."""

from dataclasses import replace

import pytest

from gyre.evals.plan import ASKED_FILE, EvalArguments, ServedWeights, planned, remember
from gyre.evals.results import RESULTS_FILE, EvalResult, EvalResults
from gyre.evals.runner import begun, slot_of
from gyre.types.errors import ConfigError, LogDamaged
from gyre.types.outcomes import Outcome


def plan(folder, **changed):
    tasks = folder / "tasks.jsonl"
    line = '{"id": "t", "instruction": "go", "evaluation": {"argv": ["true"]}}\n'
    folder.mkdir(exist_ok=True)
    tasks.write_text(line)
    settings = {
        "tasks": str(tasks),
        "engines": (),
        "harness": None,
        "argv": ("agent",),
        "members": 2,
        "concurrency": 3,
        "config": None,
        "overrides": (),
    }
    asked = EvalArguments(**(settings | changed))
    run = folder / "run"
    run.mkdir(exist_ok=True)
    return planned(asked, ServedWeights(model="tiny"), run, where="test", engine_key=None)


def test_the_last_of_those_begun_anew_counts(tmp_path):
    for name in ("g00000-00", "g00000.2-00", "g00000.10-00", "g00001-01", "eval-3", "g0-0"):
        (tmp_path / name).mkdir()

    assert {(0, 0): "g00000.10-00", (1, 1): "g00001-01"} == begun(tmp_path)
    assert {} == begun(tmp_path / "none")
    assert [(12, 3), (12, 3), None] == [
        slot_of(name) for name in ("g00012-03", "g00012.1-03", "eval-00012")
    ]


def test_what_was_asked_for_may_be_asked_for_again(tmp_path):
    """With more at once, or another address, it is the same."""
    remember(plan(tmp_path), ["t"])
    before = (tmp_path / "run" / ASKED_FILE).read_bytes()
    again = plan(tmp_path, concurrency=9, overrides=("proxy.port=4321",))
    remember(again, ["t"])

    assert before == (tmp_path / "run" / ASKED_FILE).read_bytes()


@pytest.mark.parametrize(
    ("changed", "tasks", "named"),
    [
        ({"members": 3}, ["t"], "executions of a task"),
        ({}, ["t", "u"], "names of tasks"),
        ({"argv": ("other",)}, ["t"], "harness"),
        ({"overrides": ("sampling.temperature=0",)}, ["t"], "sampling"),
        ({"overrides": ("deadlines.agent_s=5",)}, ["t"], "deadlines"),
    ],
)
def test_something_else_is_refused_and_named(changed, tasks, named, tmp_path):
    remember(plan(tmp_path), ["t"])
    with pytest.raises(ConfigError, match=f"these differ: {named}$"):
        remember(plan(tmp_path, **changed), tasks)


def test_other_weights_are_something_else(tmp_path):
    one = plan(tmp_path)
    remember(one, ["t"])
    with pytest.raises(ConfigError, match=r"these differ: weights$"):
        remember(replace(one, weights=ServedWeights(model="tiny", version=3)), ["t"])


def result(name):
    return EvalResult(
        execution=name,
        task="t",
        ending="completed",
        outcome=Outcome.VALID,
        score=0.5,
        highest=1.0,
        ran_s=1.0,
        reason=None,
        calls=2,
        versions=(0,),
    )


def test_results_of_before_stay_and_half_a_line_is_cut_off(tmp_path):
    with EvalResults(tmp_path) as results:
        results.add(result("g00000-00"))
    path = tmp_path / RESULTS_FILE
    path.write_bytes(path.read_bytes() + b'{"execution": "g00000')
    with EvalResults(tmp_path) as results:
        before = list(results.all)
        results.add(result("g00000-01"))
    with EvalResults(tmp_path) as results:
        after = results.all

    assert [result("g00000-00")] == before
    assert [result("g00000-00"), result("g00000-01")] == after


def test_a_line_that_is_no_result_is_named(tmp_path):
    (tmp_path / RESULTS_FILE).write_text("{}\n")
    with pytest.raises(LogDamaged, match="expected results, a line each"):
        EvalResults(tmp_path)
