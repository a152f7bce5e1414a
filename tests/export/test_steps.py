"""Tasks of several steps under real supervisors: each step judged, gates, endings, deaths."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.controller.support.supervised import (
    evaluation,
    order,
    resume,
    supervised,
)
from tests.tasks.test_shipped import judged_within
from tests.waiting import PATIENCE_S, wait_until

from gyre.export.harbor import write_trial
from gyre.rollout.main import Secrets
from gyre.rollout.workspace import content_hash
from gyre.tasks.harbor import read_task
from gyre.types.outcomes import (
    Assessed,
    Ending,
    Launched,
    Outcome,
    Status,
    StepAssessed,
    StepEnded,
    StepStarted,
    Terminated,
)
from gyre.types.tasks import Task, TaskStep

pytestmark = pytest.mark.slow

LEDGER = Path(__file__).parents[2] / "examples" / "tasks" / "grow-ledger"
GOES_ON = "touch waits; sleep 600"
"""The end of an instruction: its agent has done its work and goes on until its time is over."""
LONG = {"agent_s": 3 * PATIENCE_S, "overall_s": 4 * PATIENCE_S}
"""Of which is enough left when the time of one step is over."""
COUNT = 'echo "0.$(wc -l < work)" > $GYRE_RESULTS/reward.txt'
"""A step is worth how far the work has come."""
BROKEN = evaluation("exit 7", attempts=1)


def stepped(*steps, harness='eval "$0"', **changed):
    """An order whose agent does as each instruction says; steps by name, with what is changed."""
    wanted = order(["sh", "-c", harness, "{instruction}"], **changed)
    made = tuple(
        TaskStep(**({"name": name, "files": None, "evaluation": evaluation(COUNT)} | settings))
        for name, settings in steps
    )
    task = Task(id="steps", instruction="", files=None, evaluation=made[-1].evaluation, steps=made)
    return replace(wanted, task=task)


ONE = ("first", {"instruction": "echo one >> work"})
TWO = ("second", {"instruction": "echo two >> work"})


def changed(step, **settings):
    return step[0], step[1] | settings


def kinds(one):
    return [type(fact).__name__ for fact in one.facts]


def only(one, kind):
    return [fact for fact in one.facts if isinstance(fact, kind)]


def scores(one):
    """Of the assessments in their order; those of the last step come behind the termination."""
    return [
        fact.assessment.score for fact in one.facts if isinstance(fact, StepAssessed | Assessed)
    ]


def kill_and_resume(one, key):
    one.process.kill()
    one.process.wait(PATIENCE_S)
    one.process = resume(one.folder, Secrets(key=key))


def test_steps_share_a_workspace_and_each_is_judged_before_the_next_starts(tmp_path):
    """SPEC 1.2, 6.2: p and f move once, and every assessment stays with the state it judged."""
    with supervised(tmp_path, stepped(ONE, TWO)) as one:
        record = one.end()
    (ended,) = only(one, StepEnded)
    first, second = ended.state, record.terminated.state

    assert [
        *["Prepared", "Launched", "StepEnded", "StepAssessed"],
        *["StepStarted", "Terminated", "Assessed", "Closed"],
    ] == kinds(one)
    assert [0.1, 0.2] == scores(one)
    assert (Outcome.VALID, pytest.approx(0.15)) == (record.closed.outcome, record.closed.score)
    assert [first.reference] == [fact.assessment.reference for fact in only(one, StepAssessed)]
    assert [second.reference] == [made.reference for made in record.assessments]
    assert [first.reference, second.reference] == [
        content_hash(tmp_path / state.folder) for state in (first, second)
    ]
    assert "one\n" == (tmp_path / first.folder / "work").read_text()


def test_a_trial_shows_its_steps_as_harbor_does(tmp_path):
    with supervised(tmp_path / "run" / "attempts" / "e1", stepped(ONE, TWO)) as one:
        one.end()
    result = write_trial(one.folder, tmp_path / "trial", log=None)
    lines = (tmp_path / "trial" / "assessments.jsonl").read_text().splitlines()

    assert {"reward": pytest.approx(0.15)} == result["verifier_result"]["rewards"]
    assert [("first", {"reward": 0.1}), ("second", {"reward": 0.2})] == [
        (step["step_name"], step["verifier_result"]["rewards"]) for step in result["step_results"]
    ]
    assert [(0, 0.1), (None, 0.2)] == [
        (made.get("step"), made["score"]) for made in map(json.loads, lines)
    ]
    assert (tmp_path / "trial" / "steps" / "second" / "agent" / "output.txt").is_file()


def test_a_step_that_is_the_only_one_is_in_its_trial_too(tmp_path):
    said = changed(ONE, instruction="echo one >> work; echo said")
    with supervised(tmp_path / "run" / "attempts" / "e1", stepped(said)) as one:
        one.end()
    (step,) = write_trial(one.folder, tmp_path / "trial", log=None)["step_results"]

    assert {"reward": 0.1} == step["verifier_result"]["rewards"]
    assert "said\n" == (tmp_path / "trial/steps/first/agent/output.txt").read_text()


ENDINGS = {
    "finished": (ONE, TWO, {}, Ending.COMPLETED, [0.1, 0.2]),
    "crashed in the first": (
        changed(ONE, instruction="echo one >> work; exit 3"),
        TWO,
        {},
        Ending.COMPLETED,
        [0.1, 0.2],
    ),
    "crashed in the last": (
        ONE,
        changed(TWO, instruction="echo two >> work; kill -9 $$"),
        {},
        Ending.CRASHED,
        [0.1, 0.2],
    ),
    "the first step's time over": (
        changed(ONE, instruction=f"echo one >> work; {GOES_ON}", agent_s=PATIENCE_S),
        TWO,
        LONG,
        Ending.COMPLETED,
        [0.1, 0.2],
    ),
    "the last step's time over": (
        ONE,
        changed(TWO, instruction=f"echo two >> work; {GOES_ON}", agent_s=PATIENCE_S),
        LONG,
        Ending.TIMED_OUT,
        [0.1, 0.2],
    ),
    "all time over in the first": (
        changed(ONE, instruction=f"echo one >> work; {GOES_ON}"),
        TWO,
        {},
        Ending.TIMED_OUT,
        [0.1],
    ),
    "below its least": (changed(ONE, least={"reward": 0.5}), TWO, {}, Ending.COMPLETED, [0.1]),
    "no less than its least": (
        changed(ONE, least={"reward": 0.1}),
        TWO,
        {},
        Ending.COMPLETED,
        [0.1, 0.2],
    ),
    "a least that nobody names": (
        changed(ONE, least={"safety": 0.0}),
        TWO,
        {},
        Ending.COMPLETED,
        [0.1],
    ),
}
"""Two steps, settings, how the execution ends, and the scores of the steps that were reached."""


@pytest.mark.parametrize("way", ENDINGS)
def test_every_step_that_is_reached_counts_and_the_others_are_worth_nothing(way, tmp_path):
    """SPEC 6.1: half of the way has the score of that half."""
    first, second, settings, ending, found = ENDINGS[way]
    with supervised(tmp_path, stepped(first, second, **settings)) as one:
        if any(GOES_ON in step["instruction"] for _, step in (first, second)):
            wait_until((tmp_path / "workspace" / "waits").exists, "the work of that step")
            one.pass_time()
        record = one.end()

    assert ending is record.terminated.ending
    assert found == scores(one)
    assert (Outcome.VALID, pytest.approx(sum(found) / 2)) == (
        record.closed.outcome,
        record.closed.score,
    )
    assert (1, 1) == (kinds(one).count("Launched"), kinds(one).count("Terminated"))


def test_where_the_last_step_alone_counts_it_must_be_reached(tmp_path):
    closed = {}
    for name, least in (("shut", 0.5), ("open", 0.1)):
        wanted = stepped(changed(ONE, least={"reward": least}), TWO)
        wanted = replace(wanted, task=replace(wanted.task, steps_reward="final"))
        with supervised(tmp_path / name, wanted) as one:
            closed[name] = one.end().closed.score

    assert {"shut": 0.0, "open": 0.2} == closed


@pytest.mark.parametrize(("first", "second"), [(BROKEN, None), (None, BROKEN)])
def test_a_step_that_nobody_could_judge_leaves_no_reward(first, second, tmp_path):
    """SPEC 6.3: what the other steps are worth is not what this one is."""
    usual = evaluation(COUNT)
    wanted = stepped(
        changed(ONE, evaluation=first or usual), changed(TWO, evaluation=second or usual)
    )
    with supervised(tmp_path, wanted) as one:
        record = one.end()

    assert (Outcome.EXCLUDED, None) == (record.closed.outcome, record.closed.score)
    assert Status.FAILED is record.assessments[-1].status
    assert ([] if first else [1]) == [fact.step for fact in only(one, StepStarted)]


def test_what_is_cancelled_between_steps_keeps_what_was_judged(tmp_path):
    wanted = stepped(ONE, changed(TWO, instruction="touch begun; sleep 600"))
    with supervised(tmp_path, wanted) as one:
        wait_until((tmp_path / "workspace" / "begun").exists)
        one.signal(signal.SIGTERM)
        record = one.end()

    assert Ending.CANCELLED is record.terminated.ending
    assert [0.1, 0.1] == scores(one)


def test_a_step_brings_its_files_and_its_script_and_follows_no_link(tmp_path):
    """What an agent put in the way of a file gives way, and leads nowhere."""
    files, outside = tmp_path / "files", tmp_path / "outside"
    (files / "data").mkdir(parents=True)
    (files / "data" / "given").write_text("given\n")
    (files / "setup.sh").write_text("cat data/given >> work; echo said by setup\n")
    outside.mkdir()
    first = changed(ONE, instruction=f"echo one >> work; ln -s {outside} data")
    wanted = stepped(first, changed(TWO, files=str(files)))
    with supervised(tmp_path / "e1", wanted) as one:
        one.end()

    assert [0.1, 0.3] == scores(one)
    assert [] == list(outside.iterdir())
    assert "said by setup\n" == (tmp_path / "e1" / "steps" / "01" / "setup.txt").read_text()


def test_a_script_that_fails_ends_its_step_and_no_agent_starts(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "setup.sh").write_text("exit 4\n")
    with supervised(tmp_path / "e1", stepped(ONE, changed(TWO, files=str(files)))) as one:
        record = one.end()

    assert (Ending.CRASHED, "setup.sh: exit status 4") == (
        record.terminated.ending,
        record.terminated.reason,
    )
    assert [0.1, 0.1] == scores(one)


def test_a_killed_supervisor_goes_on_with_the_step_that_is_due(tmp_path):
    """SPEC 10: a step that ran is ended, one that was judged is not judged again."""
    starts = tmp_path / "starts"
    agent = f'echo "$0" >> {starts}; eval "$0"'
    gate = f"test -e {tmp_path}/go || {{ touch {tmp_path}/judging; sleep 600; }}; {COUNT}"
    wanted = stepped(
        changed(ONE, instruction="echo one >> work; sleep 600"),
        changed(TWO, evaluation=evaluation(gate)),
        ("third", {"instruction": "echo three >> work"}),
        harness=agent,
    )
    with supervised(tmp_path / "e1", wanted) as one:
        one.wait_for_work()
        kill_and_resume(one, "k")
        wait_until((tmp_path / "judging").exists)
        (tmp_path / "go").touch()
        kill_and_resume(one, "k")
        one.end()

    assert [0.1, 0.2, 0.3] == scores(one)
    assert [Ending.CRASHED, Ending.COMPLETED] == [step.ending for step in only(one, StepEnded)]
    assert 3 == len(starts.read_text().splitlines())
    assert [1, 2, 2, 1] == [
        len(only(one, kind)) for kind in (Launched, StepStarted, StepEnded, Terminated)
    ]


def test_without_its_key_a_further_step_cannot_start_and_is_as_good_as_cancelled(tmp_path):
    """SPEC 6.3: nobody can say what it would have come to; whoever adopted it begins it anew."""
    judging = tmp_path / "judging"
    slow = evaluation(f"test -e {judging} || {{ touch {judging}; sleep 600; }}; {COUNT}")
    with supervised(tmp_path / "e1", stepped(changed(ONE, evaluation=slow), TWO)) as one:
        wait_until(judging.exists)
        kill_and_resume(one, "")
        record = one.end()

    assert [0.1] == scores(one)
    assert (Ending.CANCELLED, None) == (record.terminated.ending, record.terminated.state)
    assert Outcome.EXCLUDED is record.closed.outcome
    assert "key is gone" in record.closed.reason


WAYS = {
    "solved": (("solve.sh", "solve.sh"), [1.0, 1.0]),
    "in between": (("partial.sh", "partial.sh"), [pytest.approx(4 / 6), 0.25]),
    "untouched": (("", ""), [0.0]),
    "the second untouched": (("solve.sh", ""), [1.0, 0.0]),
}


@pytest.mark.parametrize("kind", ["process", "local"])
@pytest.mark.parametrize("way", WAYS)
def test_the_task_with_steps_that_comes_along_is_scored_step_by_step(way, kind, tmp_path):
    """Untouched it does not reach its second step."""
    scripts, found = WAYS[way]
    task = read_task(judged_within(PATIENCE_S, LEDGER, tmp_path / LEDGER.name))
    steps = tuple(
        replace(
            step,
            instruction=f"bash {LEDGER}/steps/{step.name}/solution/{script}" if script else ":",
            agent_s=PATIENCE_S,
            evaluation=replace(step.evaluation, attempt_s=PATIENCE_S),
        )
        for step, script in zip(task.steps, scripts, strict=True)
    )
    wanted = order(["sh", "-c", 'eval "$0"', "{instruction}"], agent_s=PATIENCE_S)
    sandbox = replace(wanted.sandbox, kind=kind, readable=(str(LEDGER),))
    wanted = replace(wanted, task=replace(task, steps=steps), sandbox=sandbox)
    with supervised(tmp_path / "e1", wanted) as one:
        record = one.end()

    assert found == scores(one)
    assert (Outcome.VALID, pytest.approx(sum(scores(one)) / 2)) == (
        record.closed.outcome,
        record.closed.score,
    )
