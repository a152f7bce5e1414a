"""Call logs written by hand, with every number in view."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gyre.storage.call_log import CallLog
from gyre.trajectory.tree import Tree, grow
from gyre.types.call_records import (
    CallClosed,
    CallDelivered,
    CallEchoed,
    CallFailed,
    CallOpened,
    CallRecord,
    LogOpened,
    LogSealed,
    NewSegment,
)
from gyre.types.conversation import Message
from gyre.types.ids import CallId, EngineName, ExecutionId, SegmentId
from gyre.types.sampling import SamplingParams, Span


def packed(ids: list[int]) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


@dataclass
class Story:
    """An execution's records, made call by call; tokens are numbered as they come."""

    execution: str = "x"
    model: str = "no-such-model"
    records: list[CallRecord] = field(default_factory=list)
    segments: int = 0
    fresh: "count[int]" = field(default_factory=lambda: count(1000))

    def __post_init__(self) -> None:
        self.records.append(
            LogOpened(
                format=1,
                execution=ExecutionId(self.execution),
                key_hash=b"k" * 32,
                salt=b"s" * 16,
                model=self.model,
                renderer="bytes",
                at=0.0,
            )
        )

    def ids(self, many: int) -> list[int]:
        return [next(self.fresh) for _ in range(many)]

    def call(
        self,
        number: int,
        under: int,
        inputs: dict[str, int | list[int]],
        output: int | list[int],
        *,
        commit: bool = True,
        cut: int | None = None,
        logprobs: bool = True,
        version: int | None = 3,
        text: str = "",
        **fields: Any,
    ) -> int:
        """A call whose history ends on segment `under`; returns the segment of its reply."""
        new = []
        for label, given in inputs.items():
            ids = self.ids(given) if isinstance(given, int) else given
            new.append(NewSegment(label=label, key=bytes([len(new)]) * 16, ids=packed(ids)))
        sampled = self.ids(output) if isinstance(output, int) else output
        values = [-((one % 7) + 1) / 8 for one in sampled]
        settings: dict[str, Any] = {
            "finish": "stop",
            "message": Message(role="assistant", text=text),
            "role": "main",
            "harness": "test",
            "agent": None,
            "fork": None,
            "ambiguous": False,
            "spans": (Span(engine=EngineName("one"), version=version, tokens=len(sampled)),),
        }
        call = CallId(number)
        self.records += [
            CallOpened(call=call, at=1.0, dialect="chat", num_messages=1, prompt_tokens=1),
            CallClosed(
                call=call,
                parent=SegmentId(under),
                inputs=tuple(new),
                prompt=packed([9]),
                output=packed(sampled),
                logprobs=np.array(values, dtype=np.float32).tobytes() if logprobs else None,
                keys=(b"r" * 16,),
                sampling=SamplingParams(),
                opened_at=1.0,
                closed_at=2.0,
                **(settings | fields),
            ),
        ]
        if cut is not None:
            self.records.append(CallEchoed(call=call, tokens=cut))
        elif commit:
            self.records.append(CallDelivered(call=call))
        self.segments += len(new) + 1
        return self.segments

    def fail(self, number: int, reason: str) -> None:
        call = CallId(number)
        self.open(number)
        self.records.append(CallFailed(call=call, at=2.0, reason=reason))

    def open(self, number: int) -> None:
        call = CallId(number)
        self.records.append(
            CallOpened(call=call, at=1.0, dialect="chat", num_messages=1, prompt_tokens=1)
        )

    def seal(self) -> None:
        self.records.append(LogSealed(at=3.0))

    @property
    def tree(self) -> Tree:
        return grow(self.records)

    def write(self, run: Path) -> Path:
        """The log in a run folder."""
        folder = run / "executions"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.execution}.calls"
        log = CallLog(path)
        log.append(*self.records)
        log.close()
        return path


@pytest.fixture(scope="session")
def make_story() -> Callable[..., Story]:
    return Story


@pytest.fixture
def errand(make_story: Callable[..., Story]) -> Story:
    """One of everything: a retry, a summary, a fresh start, a sub-agent, a side call, a failure."""
    history = make_story()
    one = history.call(1, 0, {"system": 100, "user": 20}, 30, text="Looking.")
    two = history.call(2, one, {"tool": 40}, 10)
    history.call(3, two, {"tool": 5}, 7, commit=False, finish="abort")
    three = history.call(4, two + 1, {}, 12, fork="retry")
    sub = history.call(
        5, 0, {"system": 60, "user": 9}, 8, role="sub-agent", agent="reader-1", fork="new-root"
    )
    history.call(6, sub, {"tool": 300}, 4, role="sub-agent", agent="reader-1")
    four = history.call(7, three, {"tool": 6}, 11)
    history.call(8, four, {"user": 13}, 25, role="main-summary")
    history.call(9, four, {"tool": 3}, 20, fork="branch", cut=15)
    history.call(10, 1, {"user": 50}, 21, fork="new-conversation")
    history.call(11, 0, {"system": 4, "user": 6}, 2, role="aux", fork="new-root", logprobs=False)
    history.fail(12, "nobody left to answer")
    history.open(13)
    return history
