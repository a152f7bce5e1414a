"""The framed call log: what is written is read, and damage is never silent."""

import random
import resource
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.storage.call_log import MAGIC, CallLog, first, frame, read
from gyre.types.call_records import (
    CallClosed,
    CallDelivered,
    CallEchoed,
    CallFailed,
    CallOpened,
    LogOpened,
    LogSealed,
    NewSegment,
)
from gyre.types.conversation import Message, ToolCall
from gyre.types.errors import LogDamaged
from gyre.types.ids import CallId, EngineName, ExecutionId, SegmentId
from gyre.types.sampling import SamplingParams, Span

OPENED = LogOpened(
    format=1,
    execution=ExecutionId("x"),
    key_hash=b"h" * 32,
    salt=b"s" * 16,
    model="m",
    renderer="r",
    at=1.5,
)
CLOSED = CallClosed(
    call=CallId(1),
    parent=SegmentId(0),
    inputs=(NewSegment(label="user", key=b"k" * 16, ids=b"\1\0\0\0", trim=0),),
    prompt=b"\2\0\0\0",
    output=b"\3\0\0\0",
    logprobs=None,
    spans=(Span(engine=EngineName("e"), version=None, tokens=1),),
    finish="stop",
    message=Message(
        role="assistant",
        text="é\x00",
        reasoning=None,
        calls=(ToolCall(id="c", name="run", arguments="{", native_id=None),),
    ),
    keys=(b"a" * 16,),
    role="main",
    harness="generic",
    agent=None,
    fork=None,
    ambiguous=False,
    sampling=SamplingParams(stop=("x",), stop_ids=(1, 2)),
    asked={"temperature": 0.5, "seed": None, "stream": True, "user": "u"},
    metadata={"session": "1"},
    flags=("no-logprobs",),
    opened_at=1.0,
    closed_at=2.0,
)
RECORDS = (
    OPENED,
    CallOpened(call=CallId(1), at=1.0, dialect="chat", num_messages=2, prompt_tokens=9),
    CLOSED,
    CallDelivered(call=CallId(1)),
    CallEchoed(call=CallId(1), tokens=3, keys=(b"z" * 16,)),
    CallFailed(call=CallId(2), at=3.0, reason="gone"),
    LogSealed(at=4.0),
)


@pytest.fixture
def path(tmp_path):
    log = CallLog(tmp_path / "x.calls")
    log.append(*RECORDS)
    log.sync()
    log.close()
    return tmp_path / "x.calls"


def test_every_kind_of_record_is_read_as_it_was_written(path):
    found = read(path)

    assert RECORDS == found.records
    assert (path.stat().st_size, 0) == (found.sound_bytes, found.torn_bytes)
    assert OPENED == first(path)


def test_a_torn_tail_is_left_out_at_every_byte(path):
    """FAULTS 32: whatever was cut, the records before the cut are there and no others."""
    data = path.read_bytes()
    ends = [len(MAGIC)]
    for record in RECORDS:
        ends.append(ends[-1] + len(frame(record)))
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found = read(path)
        assert RECORDS[: sum(end <= size for end in ends[1:])] == found.records
        assert size == found.sound_bytes + found.torn_bytes


def test_a_writer_goes_on_after_a_torn_tail(path):
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    log = CallLog(path, sound_bytes=read(path).sound_bytes)
    log.append(LogSealed(at=9.0))
    log.close()

    assert (*RECORDS[:-1], LogSealed(at=9.0)) == read(path).records


def test_damage_in_the_middle_is_reported_never_skipped(path):
    """FAULTS 32: any flipped bit either leaves a shorter sound log or is named."""
    data = path.read_bytes()
    last = len(data) - len(frame(RECORDS[-1]))
    rng = random.Random(0)
    for _ in range(400):
        at = rng.randrange(len(MAGIC), last)
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(LogDamaged, match=r"x\.calls: "):
            read(path)


def test_what_is_no_log_is_refused(tmp_path):
    path = tmp_path / "x.calls"
    path.write_bytes(b"\x80\x04\x95 a pickle, for all we know")

    with pytest.raises(LogDamaged, match="not a call log"):
        read(path)


def test_a_newer_format_is_refused(tmp_path):
    log = CallLog(tmp_path / "x.calls")
    log.append(replace(OPENED, format=2))
    log.close()

    with pytest.raises(LogDamaged, match="format 2 is newer than 1"):
        read(tmp_path / "x.calls")


@given(st.lists(st.sampled_from(RECORDS), max_size=20))
def test_any_sequence_survives(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("log") / "x.calls"
    log = CallLog(path)
    for record in records:
        log.append(record)
    log.close()

    assert tuple(records) == read(path).records


FULL = """
import resource, signal, sys
from pathlib import Path
from gyre.storage.call_log import CallLog, read
from gyre.types.ids import CallId
from gyre.types.call_records import CallDelivered
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
log = CallLog(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
written = 0
while True:
    try:
        log.append(CallDelivered(call=CallId(written)))
    except OSError:
        break
    written += 1
assert written == len(read(path).records), "a refused record left bytes behind"
assert 0 == read(path).torn_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(CallDelivered(call=CallId(written)))
assert written + 1 == len(read(path).records)
print("ok", written)
"""


def test_a_full_disk_refuses_whole_records_and_writing_resumes(tmp_path):
    """FAULTS 31: nothing is recorded half; once there is room the log goes on."""
    assert resource.RLIM_INFINITY == resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "x.calls")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "" == done.stderr
    assert done.stdout.startswith("ok ")
