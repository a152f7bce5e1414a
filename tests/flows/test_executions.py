"""A task from a folder to its outcome: a supervised agent program behind a real proxy."""

import sys
from pathlib import Path

from examples.recording import agent_script
from tests.controller.support.supervised import Supervised, start
from tests.waiting import PATIENCE_S

from gyre.rollout.main import Secrets
from gyre.rollout.spec import ExecutionSpec
from gyre.storage.call_log import logs, read
from gyre.tasks.folder import FolderTasks
from gyre.testing.processes import EngineProcess
from gyre.trajectory.tree import grow
from gyre.types.outcomes import Ending, Outcome, Terminated

AGENT = Path(agent_script.__file__).parents[1] / "agent.py"
TOML = f"""
instruction = {agent_script.TASK!r}

[evaluation]
argv = ["sh", "-c", 'grep -qxf "$GYRE_EVALUATION/answer" report.txt || exit 1']
score = "exit-status"
"""


def write_task(folder):
    for name in ("files", "evaluation"):
        (folder / "report" / name).mkdir(parents=True)
    (folder / "report" / "task.toml").write_text(TOML)
    (folder / "report" / "files" / "note-year.txt").write_text("In May it rained.\n" * 12)
    (folder / "report" / "files" / "note-list.txt").write_text("Buy bread.\n")
    (folder / "report" / "evaluation" / "answer").write_text(agent_script.ANSWER + "\n")
    return FolderTasks(folder).get(0)


def supervise(stage, proxy, name):
    opened = proxy.open(name)
    order = ExecutionSpec(
        execution=opened.id,
        task=write_task(stage.folder / "tasks"),
        url=opened.url,
        harness=(sys.executable, str(AGENT), "{instruction}", "--compact-at", "640"),
        variables={},
        agent_s=PATIENCE_S,
        overall_s=2 * PATIENCE_S,
    )
    folder = stage.folder / "executions" / name
    return Supervised(folder, start(folder, order, Secrets(key=opened.key)))


def test_an_agent_does_its_task_and_is_judged_by_what_it_left(stage):
    """SPEC 6.1, 6.2: its calls are recorded under the same execution."""
    script = f"{agent_script.__file__}:script"
    log = stage.folder / "asks.jsonl"
    with EngineProcess("sglang", script=script, tokenizer=stage.tokenizer, log=log) as engine:
        proxy = stage.proxy(engine)
        one = supervise(stage, proxy, "x")
        one.wait_for_fact(Terminated)
        proxy.close("x")
        record = one.end()
    tree = grow(read(next(logs(stage.folder / "run"))).records)

    assert (Ending.COMPLETED, "x", "report") == (
        record.terminated.ending,
        record.execution,
        record.task,
    )
    assert (Outcome.VALID, 1.0) == (record.closed.outcome, record.closed.score)
    assert 8 == len(tree.calls)
    assert agent_script.DONE in (one.folder / "output.txt").read_text()
    assert (one.folder / "frozen" / "report.txt").exists()


def test_an_agent_whose_key_is_closed_ends_and_its_work_is_judged(stage):
    """SPEC 4.7, 6.1: a crash with nothing done is a valid 0, because it was assessed."""
    engine = stage.engine()
    proxy = stage.proxy(engine)
    one = supervise(stage, proxy, "x")
    proxy.close("x")
    record = one.end()

    assert Ending.CRASHED is record.terminated.ending
    assert (Outcome.VALID, 0.0) == (record.closed.outcome, record.closed.score)
    assert "401" in (one.folder / "output.txt").read_text()
