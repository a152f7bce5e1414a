"""A lender knows who reads: it waits for them, and nobody comes after it has ended."""

import os
import signal
import subprocess
import sys
import time
from threading import Event, Thread

import pytest
from tests.waiting import PATIENCE_S

from gyre.model.cuda_ipc import ReaderLocks, reading
from gyre.types.errors import ExposureGone, TransferError

KEY = "5a" * 16
READER = """
import sys
from pathlib import Path
from gyre.model.cuda_ipc import reading
with reading(Path(sys.argv[1]), sys.argv[2]):
    print("reads", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lent(tmp_path):
    found = ReaderLocks(tmp_path, KEY)
    yield found
    found.refuse()
    assert found.are_gone(PATIENCE_S)


@pytest.fixture
def reader(lent, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", READER, tmp_path, KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert b"reads\n" == process.stdout.readline()
        yield process
        process.stdin.close()


def test_a_loan_that_nobody_reads_is_over_at_once(lent, tmp_path):
    lent.refuse()

    assert lent.are_gone(0.0)
    assert lent.are_gone(0.0)
    assert [] == list(tmp_path.iterdir())


def test_readers_read_together(lent, tmp_path):
    with reading(tmp_path, KEY), reading(tmp_path, KEY):
        lent.refuse()
        assert not lent.are_gone(0.0)

    assert lent.are_gone(0.0)


def test_nobody_comes_after_the_end(lent, tmp_path):
    lent.refuse()
    lent.refuse()

    with pytest.raises(ExposureGone, match="not lent any more"), reading(tmp_path, KEY):
        pass


def test_who_reads_is_waited_for_in_another_process_too(lent, reader):
    lent.refuse()
    is_early = lent.are_gone(0.05)
    reader.stdin.close()

    assert not is_early
    assert lent.are_gone(PATIENCE_S)


def test_a_killed_reader_keeps_nobody_waiting(lent, reader):
    lent.refuse()
    os.kill(reader.pid, signal.SIGKILL)

    assert lent.are_gone(PATIENCE_S)


def test_a_reader_that_comes_just_before_the_end_is_waited_for_or_told(tmp_path):
    """Whatever the moment: inside its context the lender is not through."""
    found = {"read": 0, "told": 0}
    for number in range(200):
        lent, through, begun = ReaderLocks(tmp_path, f"{number:032x}"), Event(), Event()

        def read(number=number, through=through, begun=begun):
            begun.set()
            try:
                with reading(tmp_path, f"{number:032x}"):
                    assert not through.is_set()
                    time.sleep(0.0002)
                    assert not through.is_set()
                    found["read"] += 1
            except ExposureGone:
                found["told"] += 1

        thread = Thread(target=read)
        thread.start()
        begun.wait()
        time.sleep(0.00001 * (number % 20))
        lent.refuse()
        assert lent.are_gone(PATIENCE_S)
        through.set()
        thread.join()

    assert 200 == found["read"] + found["told"]


def test_a_folder_that_is_gone_and_a_key_that_is_none_are_refused(tmp_path):
    with pytest.raises(TransferError, match="no room for a loan"):
        ReaderLocks(tmp_path / "gone", KEY)
    with pytest.raises(TransferError, match="expected hex digits"), reading(tmp_path, "../x"):
        pass
