"""How a run stands, in a terminal, by its journal: once, or as it goes.

Rule 1: nothing is written and nothing is locked, so that looking cannot disturb a run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gyre.cluster.procfs import lock_holder
from gyre.journal.reader import JournalFollower, path_of
from gyre.observability.history.faults import FaultHistory, RunFault
from gyre.observability.terminal.board import JOURNAL_EVENTS, RunBoard
from gyre.observability.terminal.charts import timeline
from gyre.observability.terminal.colors import cut, printed, safe
from gyre.observability.terminal.progress import WIDTH, Progress, block, ending, terminal_size
from gyre.observability.terminal.text import clock, many, spelled, spoken
from gyre.scheduler.messages import Event, StopReason
from gyre.scheduler.replay import shape_of
from gyre.types.errors import ConfigError
from gyre.types.run_events import TOLD

MOST_FAULTS = 3
MOST_CELLS = 10
"""A timeline of more has no place on one screen."""
LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSummary:
    """How a run stands, in a few words and as an exit status."""

    status: int
    """0: it runs, or has taken all its steps; 1: it stopped itself; 3: it has no controller."""
    text: str


class RunStatusView:
    """One run, up to what its journal held when it was last looked at."""

    def __init__(self, place: Path) -> None:
        """`place` is a run's folder, or a journal alone."""
        self.place = place
        path = path_of(place) if place.is_dir() else place
        if not path.is_file():
            raise ConfigError(f"{place}: expected the folder of a run, or a journal")
        self._following = JournalFollower(path, kinds=JOURNAL_EVENTS)
        self._generation = 0
        self.board: RunBoard | None = None
        """None before the journal has a header."""
        self.faults = FaultHistory()

    def news(self) -> Iterator[tuple[float, object]]:
        """Facts since the last time, each to be recorded on `board` before the next is asked for.

        The board is another one where the facts are all there are.
        """
        entries = self._following.news()
        header = self._following.header
        if header is None:
            return
        if self.board is None or self._generation != self._following.generation:
            self._generation = self._following.generation
            self.board, self.faults = (
                RunBoard(shape_of(header.shape), name=header.run),
                FaultHistory(),
            )
        for entry in entries:
            yield entry.now, entry.event
            # After the caller has recorded it on the board, because what is a fault depends on it.
            self._note(entry.now, entry.event)

    def _note(self, now: float, fact: object) -> None:
        assert self.board is not None
        if not isinstance(fact, Event):
            self.faults.record_fact(now, fact)
            return
        self.faults.record_event(now, fact, self.board.scheduler)
        for order in self.board.orders:
            self.faults.record_command(now, order)

    def catch_up(self) -> RunBoard:
        """The board with all of it; raises ConfigError where nothing is recorded."""
        for now, fact in self.news():
            assert self.board is not None
            self.board.record(now, fact)
        if self.board is None:
            raise ConfigError(f"{self._following.path}: nothing is recorded yet")
        return self.board

    def writer(self) -> int | None:
        """The process that works on it."""
        return lock_holder(self._following.path)

    def stands(self) -> StatusSummary:
        board = self.board
        if board is not None and board.is_over and board.ended != TOLD:
            is_whole = board.scheduler.stopped is StopReason.FINISHED
            return StatusSummary(status=0 if is_whole else 1, text=ending(board))
        if (pid := self.writer()) is not None:
            return StatusSummary(status=0, text=f"runs in process {pid}")
        return StatusSummary(status=3, text=f"nobody works on it; gyre resume {self.place} goes on")


def screen(
    place: Path, *, colour: bool, encoding: str | None, width: int = WIDTH
) -> tuple[list[str], int]:
    """A run on one screen, and its exit status."""
    looking = RunStatusView(place)
    board = looking.catch_up()
    stands = looking.stands()
    lines = [cut(safe(f"{board.name}: {stands.text}"), width), ""]
    lines += printed(block(board, board.now), width=width, colour=colour)
    if board.shape.num_cells <= MOST_CELLS and board.now > 0:
        lines += ["", *(cut(line, width) for line in timeline(board, width=width))]
    if faults := looking.faults.rows:
        shown = [_fault(fault, width) for fault in faults[-MOST_FAULTS:]]
        lines += ["", many(len(faults), "fault"), *shown]
    return [spelled(line, encoding) for line in lines], stands.status


def _fault(fault: RunFault, width: int) -> str:
    mended = fault.mended_at_s
    how = "" if mended is None else f", mended after {spoken(mended - fault.at_s)}"
    return cut(f"  {clock(fault.at_s):>8}  {safe(fault.text)}{how}", width)


def follow(
    place: Path,
    stream: TextIO,
    *,
    colour: bool,
    clock_s: Callable[[], float],
    sleep: Callable[[float], None],
) -> int:
    """Shows a run until it is over or has no controller any more; returns its exit status."""
    looking = RunStatusView(place)
    progress: Progress | None = None
    heard_s = clock_s()
    while True:
        # Asked before it is read: what a writer that is gone wrote is in the journal by then.
        is_alone = looking.writer() is None
        for now, fact in looking.news():
            heard_s = clock_s()
            if progress is None or progress.board is not looking.board:
                assert looking.board is not None
                looking.board.record(now, fact)
            else:
                progress.record(now, fact)
        board = looking.board
        if board is not None and (progress is None or progress.board is not board):
            progress = Progress(stream, board, colour=colour)
        if progress is not None:
            progress.tick(progress.board.now + (0.0 if is_alone else clock_s() - heard_s))
        if is_alone or (board is not None and board.is_over):
            return _leave(looking, stream)
        sleep(LOOK_S)


def _leave(looking: RunStatusView, stream: TextIO) -> int:
    stands = looking.stands()
    name = looking.place.name if looking.board is None else looking.board.name
    line = cut(safe(f"{name}: {stands.text}"), terminal_size(stream)[0])
    print(spelled(line, stream.encoding), file=stream)
    return stands.status
