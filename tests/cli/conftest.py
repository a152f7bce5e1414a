"""A run folder with two small executions, and the command line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import PATIENCE_S

from gyre.cli.main import main
from gyre.storage.call_log import CallLog
from gyre.testing.tokenizer import tokenizer
from gyre.types.call_records import CallClosed, CallDelivered, CallRecord, LogOpened, NewSegment
from gyre.types.conversation import Message
from gyre.types.ids import CallId, EngineName, ExecutionId, SegmentId
from gyre.types.sampling import SamplingParams, Span

Gyre = Callable[..., subprocess.CompletedProcess[str]]


def encoded(text: str) -> bytes:
    ids = tokenizer().encode(text, add_special_tokens=False).ids
    return np.array(ids, dtype=np.int32).tobytes()


def closed(number: int, under: int, inputs: dict[str, str], reply: str) -> list[CallRecord]:
    output = encoded(reply)
    many = len(output) // 4
    call = CallId(number)
    new = (
        NewSegment(label=label, key=label.encode(), ids=encoded(text))
        for label, text in inputs.items()
    )
    record = CallClosed(
        call=call,
        parent=SegmentId(under),
        inputs=tuple(new),
        prompt=encoded("<|im_start|>assistant\n"),
        output=output,
        logprobs=np.full(many, -0.5, dtype=np.float32).tobytes(),
        spans=(Span(engine=EngineName("one"), version=1, tokens=many),),
        finish="stop",
        message=Message(role="assistant", text=reply),
        keys=(),
        role="main",
        harness="test",
        agent=None,
        fork=None if number == 1 else "branch",
        ambiguous=False,
        sampling=SamplingParams(),
        opened_at=1.0,
        closed_at=2.0,
    )
    return [record, CallDelivered(call=call)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Executions `one` and `two`, recorded with the tokenizer in `model`."""
    run = tmp_path / "run"
    (run / "executions").mkdir(parents=True)
    for name, word in (("one", "garden"), ("two", "harbour")):
        log = CallLog(run / "executions" / f"{name}.calls")
        opened = LogOpened(
            format=1,
            execution=ExecutionId(name),
            key_hash=b"k",
            salt=b"s",
            model=str(tmp_path / "model"),
            renderer="test",
            at=0.0,
        )
        log.append(
            opened,
            *closed(1, 0, {"system": "Be brief.", "user": f"Where is the {word}?"}, "Behind it."),
            *closed(2, 3, {"user": "And the wall?"}, "In front."),
            *closed(3, 3, {"user": "And the gate?"}, "Far away."),
        )
        log.close()
    return run


@pytest.fixture
def gyre(capfd: pytest.CaptureFixture[str]) -> Gyre:
    """Runs a command in this process."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(one) for one in arguments]
        capfd.readouterr()
        try:
            status = main(command)
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = capfd.readouterr()
        return subprocess.CompletedProcess(command, status, said.out, said.err)

    return run


@pytest.fixture
def program() -> Gyre:
    """Runs a command as a program of its own, where its process or environment matters."""

    def run(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "gyre", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, **how)

    return run


@pytest.fixture
def damaged(folder: Path) -> Path:
    """The same run, with a broken byte in the middle of `two`."""
    path = folder / "executions" / "two.calls"
    data = bytearray(path.read_bytes())
    data[150] ^= 0xFF
    path.write_bytes(data)
    return folder
