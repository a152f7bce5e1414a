"""Executions erased from a run: nothing they said is left, and whatever counts on them goes on."""

import os

import pytest
from tests.export.test_trials import assessment, ended
from tests.storage.test_call_log import CLOSED, OPENED

from gyre.cli.main import main
from gyre.export.harbor import write_job
from gyre.rollout import facts
from gyre.rollout import facts as outcome
from gyre.rollout.erase import erase
from gyre.storage import call_log, files
from gyre.storage.call_log import CallLog, path_of
from gyre.storage.wal import WalEntry, WriteAheadLog
from gyre.trajectory.loading import load
from gyre.types.call_records import CallOpened, LogSealed
from gyre.types.errors import ConfigError
from gyre.types.outcomes import Closed, Outcome

SECRET = b"what the agent saw"
STARTED = CallOpened(call=CLOSED.call, at=2.0, dialect="chat", num_messages=1, prompt_tokens=3)


def recorded(run, name, *, sealed=True):
    """An execution with a call, a workspace, an output and an outcome."""
    (run / "executions").mkdir(parents=True, exist_ok=True)
    log = CallLog(path_of(run, name))
    log.append(OPENED, STARTED, CLOSED, *([LogSealed(at=9.0)] if sealed else []))
    log.close()
    closed = Closed(outcome=Outcome.VALID, score=0.5, reason=None)
    ended(run, name, closed=closed, made=[assessment(1, 0.5)])
    attempt = run / "attempts" / name
    (attempt / "frozen").mkdir()
    (attempt / "frozen" / "notes.txt").write_bytes(SECRET)
    (attempt / "frozen").chmod(0o500)
    (attempt / "output.txt").write_bytes(SECRET)
    return attempt


def contents(run):
    return b"".join(path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file())


def test_nothing_that_it_said_or_left_remains(tmp_path):
    attempt = recorded(tmp_path, "x")
    said = CLOSED.inputs[0].ids
    assert (True, True) == (SECRET in contents(tmp_path), said in contents(tmp_path))

    erase(tmp_path, ["x"])

    assert (False, False) == (SECRET in contents(tmp_path), said in contents(tmp_path))
    assert OPENED.key_hash not in contents(tmp_path)
    assert {"order.json", "facts.jsonl", "outcome.json"} == {one.name for one in attempt.iterdir()}


def test_its_ending_and_score_remain_and_are_read_as_before(tmp_path):
    attempt = recorded(tmp_path, "x")
    before = facts.read(attempt), outcome.read_outcome(attempt)
    erase(tmp_path, ["x"])

    assert before == (facts.read(attempt), outcome.read_outcome(attempt))
    assert {} == load(path_of(tmp_path, "x")).tree.calls
    assert isinstance(call_log.read(path_of(tmp_path, "x")).records[-1], LogSealed)
    assert 1 == write_job(tmp_path, tmp_path / "job")


def test_others_are_left_alone(tmp_path):
    recorded(tmp_path, "x")
    recorded(tmp_path, "y")
    log = path_of(tmp_path, "y").read_bytes()
    erase(tmp_path, ["x"])

    assert log == path_of(tmp_path, "y").read_bytes()
    assert SECRET == (tmp_path / "attempts" / "y" / "output.txt").read_bytes()


def test_copies_in_the_journal_of_commits_are_gone_and_do_not_come_back(tmp_path):
    recorded(tmp_path, "x")
    log = path_of(tmp_path, "x").read_bytes()
    journal = WriteAheadLog(tmp_path)
    journal.write([WalEntry(log="x", offset=8, data=log[8:])])
    journal.close()
    erase(tmp_path, ["x"])
    WriteAheadLog(tmp_path).close()

    assert CLOSED.inputs[0].ids not in contents(tmp_path)


def test_copies_in_the_journal_of_another_shard_are_gone_too(tmp_path):
    recorded(tmp_path, "x")
    log = path_of(tmp_path, "x").read_bytes()
    journal = WriteAheadLog(tmp_path, shard=1)
    journal.write([WalEntry(log="x", offset=8, data=log[8:])])
    with pytest.raises(ConfigError, match="another proxy"):
        erase(tmp_path, ["x"])
    journal.close()
    erase(tmp_path, ["x"])

    assert CLOSED.inputs[0].ids not in contents(tmp_path)


def test_erasing_again_changes_nothing_that_can_be_read(tmp_path):
    recorded(tmp_path, "x")
    erase(tmp_path, ["x"])
    erase(tmp_path, ["x"])

    assert {} == load(path_of(tmp_path, "x")).tree.calls


def test_what_is_open_supervised_or_unknown_is_refused_and_nothing_is_erased(tmp_path):
    recorded(tmp_path, "x")
    recorded(tmp_path, "open", sealed=False)
    held = files.take(recorded(tmp_path, "supervised"))
    before = contents(tmp_path)
    for name in ("open", "supervised", "unknown", "../x", "a/../../x"):
        with pytest.raises(ConfigError, match=r"open|no execution"):
            erase(tmp_path, ["x", name])
        # The journal of commits exists now; it is empty.
        assert before == contents(tmp_path).replace(b"GYRECMIT", b"")
    os.close(held)


def test_a_run_that_a_proxy_serves_is_refused(tmp_path):
    recorded(tmp_path, "x")
    journal = WriteAheadLog(tmp_path)
    with pytest.raises(ConfigError, match="another proxy"):
        erase(tmp_path, ["x"])
    journal.close()

    assert SECRET in contents(tmp_path)


def test_the_command_says_what_it_erased_and_refuses_what_is_no_run(tmp_path, capsys):
    recorded(tmp_path, "x")

    assert 0 == main(["erase", str(tmp_path), "x"])
    assert "execution x is erased\n" == capsys.readouterr().out
    assert 2 == main(["erase", str(tmp_path / "nowhere"), "x"])
    assert "expected a run folder" in capsys.readouterr().err
