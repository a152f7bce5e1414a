"""Facts of an execution: the file that keeps them, the thread that posts them, the outcome file.

Rule 1: a fact is on the disk before the supervisor or the controller acts on it.
Rule 2: a last line that its writer died over is no fact, and is cut off by the next writer.
"""

import json
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from gyre.rollout.execution import Execution
from gyre.storage.files import replace, sync
from gyre.types.errors import LogDamaged, wrap_errors
from gyre.types.ids import ExecutionId
from gyre.types.outcomes import (
    Assessed,
    Closed,
    Fact,
    Launched,
    OutcomeRecord,
    Prepared,
    StepAssessed,
    StepEnded,
    StepStarted,
    Terminated,
)

FACTS_FILE = "facts.jsonl"

_KINDS: dict[str, type[Fact]] = {
    "prepared": Prepared,
    "launched": Launched,
    "step-started": StepStarted,
    "step-ended": StepEnded,
    "step-assessed": StepAssessed,
    "terminated": Terminated,
    "assessed": Assessed,
    "closed": Closed,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEntry:
    """A fact with its place; the controller knows by its sequence that it came twice."""

    sequence: int
    """Counted from 0 within the execution."""
    at: float
    """Seconds since the epoch, for people; nothing is decided by it."""
    fact: Fact

    def encode(self) -> bytes:
        """One line of JSON, without its end."""
        head = {"sequence": self.sequence, "at": self.at, "fact": _NAMES[type(self.fact)]}
        return msgspec.json.encode(head | asdict(self.fact))


def decode(line: bytes) -> FactEntry:
    """ValueError if the line is not an entry."""
    try:
        data = msgspec.json.decode(line, type=dict[str, Any])
        kind = _KINDS[data["fact"]]
        sequence, at = msgspec.convert((data["sequence"], data["at"]), tuple[int, float])
        return FactEntry(sequence=sequence, at=at, fact=msgspec.convert(data, kind))
    except (KeyError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"expected a fact: {type(error).__name__}: {error}") from error


def read(folder: Path) -> tuple[FactEntry, ...]:
    """All facts of an execution; none if it has no file, LogDamaged if a whole line is no fact."""
    return _read(folder / FACTS_FILE)[0]


def _read(path: Path) -> tuple[tuple[FactEntry, ...], int]:
    """The entries, and how many bytes they take."""
    data = path.read_bytes() if path.exists() else b""
    sound = data[: data.rfind(b"\n") + 1]
    entries = []
    for number, line in enumerate(sound.splitlines()):
        with wrap_errors(LogDamaged, f"{path}: line {number + 1} is no fact", ValueError):
            entry = decode(line)
        if entry.sequence != number:
            raise LogDamaged(f"{path}: line {number + 1} has the sequence {entry.sequence}")
        entries.append(entry)
    return tuple(entries), len(sound)


class FactsFile:
    """Appends to the facts file of an execution; there is one writer."""

    def __init__(self, folder: Path) -> None:
        path = folder / FACTS_FILE
        self.entries, sound_bytes = _read(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.ftruncate(self._fd, sound_bytes)
        sync(folder)

    def append(self, fact: Fact, *, at: float) -> FactEntry:
        """The fact is durable."""
        entry = FactEntry(sequence=len(self.entries), at=at, fact=fact)
        line = entry.encode() + b"\n"
        if os.write(self._fd, line) != len(line):
            raise OSError("the disk took half a fact")
        os.fsync(self._fd)
        self.entries = (*self.entries, entry)
        return entry

    def close(self) -> None:
        os.close(self._fd)


OUTCOME_FILE = "outcome.json"
FORMAT = 1


def write(folder: Path, record: OutcomeRecord) -> None:
    """The file says this, durably; a reader sees it or what was there before, never a part."""
    replace(folder / OUTCOME_FILE, msgspec.json.encode(record))


def read_outcome(folder: Path) -> OutcomeRecord | None:
    """What became of the execution; None while it is not terminated."""
    path = folder / OUTCOME_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    with wrap_errors(LogDamaged, f"{path}: not an outcome file", msgspec.MsgspecError):
        found = msgspec.json.decode(data, type=OutcomeRecord)
    if found.format != FORMAT:
        raise LogDamaged(f"{path}: expected format {FORMAT}, found {found.format}")
    return found


RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0
LAST_S = 5.0
"""How long is tried after the last fact; a controller that missed it reads the facts file."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class FactReporter:
    """A context that posts facts in a thread, so that the supervisor waits for no controller."""

    def __init__(self, url: str | None, token: str, execution: ExecutionId) -> None:
        self._url = url
        self._token = token
        self._execution = execution
        self._entries: queue.SimpleQueue[FactEntry | None] = queue.SimpleQueue()
        self._until = float("inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def report(self, entry: FactEntry) -> None:
        """Posts it in its turn; the controller knows by its sequence whether it has it already."""
        if self._url is not None:
            self._entries.put(entry)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._until = time.monotonic() + LAST_S
        self._entries.put(None)
        self._thread.join(LAST_S)
        self._over.set()
        # A request that is under way has its own limit, and no other follows.
        self._thread.join(LAST_S)

    def _work(self) -> None:
        while (entry := self._entries.get()) is not None:
            pause_s = RETRY_FIRST_S
            while not self._is_taken(entry) and time.monotonic() < self._until:
                if self._over.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, RETRY_MOST_S)

    def _is_taken(self, entry: FactEntry) -> bool:
        """Or refused for good, which no repetition changes."""
        assert self._url is not None
        body = {"execution": self._execution} | json.loads(entry.encode())
        request = urllib.request.Request(
            self._url,
            data=json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {self._token}",
                "content-type": "application/json",
            },
        )
        try:
            with _DIRECT.open(request, timeout=LAST_S):
                return True
        except urllib.error.HTTPError as error:
            with error:
                return error.code < 500
        except OSError:
            return False


class FactRecorder:
    """Moves an execution by facts: each is durable, and then posted."""

    def __init__(
        self, folder: Path, file: FactsFile, execution: Execution, reporter: FactReporter
    ) -> None:
        self._folder = folder
        self._file = file
        self._execution = execution
        self._reporter = reporter

    def record(self, fact: Fact) -> None:
        """One that cannot be written ends this process."""
        self._execution.apply(fact)
        entry = self._file.append(fact, at=time.time())
        if isinstance(fact, Terminated | Closed):
            write(self._folder, self._execution.record)
        self._reporter.report(entry)
