"""All ranks of a cell under one order: they do it together, or say together why not."""

from collections.abc import Sequence
from concurrent.futures import Future

from gyre.cell.ranks import protocol as rank_orders
from gyre.cell.ranks.protocol import RankCommand, RankReply
from gyre.cell.ranks.rank_part import RankWorker
from gyre.cell.ranks.ranked_followers import RankProcess
from gyre.types.errors import CellError, CellGone, GyreError


class RankGroup:
    """The driver's own part, and the ranks that follow it.

    CellGone means that the ranks no longer stand together: the cell is lost.
    """

    def __init__(
        self, part: RankWorker, followers: Sequence[RankProcess], *, patience_s: float
    ) -> None:
        """A rank that has not answered for so long never will."""
        self.part = part
        self._followers = followers
        self._patience_s = patience_s
        self._streaming: list[Future[RankReply]] | None = None

    @property
    def is_streaming(self) -> bool:
        return self._streaming is not None

    def stream(self) -> None:
        """The followers listen to micro-steps until the stream is closed."""
        if self._streaming is None:
            self._streaming = [one.ask(rank_orders.StreamCommand()) for one in self._followers]

    def streamed(self) -> None:
        """The driver has closed the stream, and so has everybody."""
        streaming, self._streaming = self._streaming, None
        for one in streaming or ():
            self._answer(one)

    def all(self, order: RankCommand, *, for_ever: bool = False) -> list[RankReply]:
        """Every rank's answer, this one's first, or the first failure once all have answered.

        What a disk may hold up is waited for as long as it takes.
        """
        asked = [one.ask(order) for one in self._followers]
        failures: list[GyreError] = []
        answers = []
        try:
            answers.append(self.part.execute(order))
        except GyreError as error:
            failures.append(error)
        for one in asked:
            try:
                answers.append(one.result() if for_ever else self._answer(one))
            except GyreError as error:
                failures.append(error)
        gone = [one for one in failures if isinstance(one, CellGone)]
        for failure in (*gone, *failures):
            raise failure
        return answers

    def surely(
        self, order: RankCommand, *, but: tuple[type[CellError], ...] = ()
    ) -> list[RankReply]:
        """As `all`, where a failure that is none of these leaves the ranks unlike each other."""
        try:
            return self.all(order)
        except but:
            raise
        except GyreError as error:
            raise CellGone(str(error)) from error

    def agreed(self, order: RankCommand) -> list[RankReply]:
        """All ranks have laid something aside, and then taken it; or none has."""
        try:
            answers = self.all(order)
        except CellGone:
            raise
        except GyreError:
            self.surely(rank_orders.AbortCommand())
            raise
        self.surely(rank_orders.CommitCommand())
        return answers

    def end(self) -> None:
        """The other ranks have ended, and nobody waits for this one."""
        for one in self._followers:
            one.end()
        self.part.drop()

    def _answer(self, asked: "Future[RankReply]") -> RankReply:
        try:
            return asked.result(self._patience_s)
        except TimeoutError as error:
            raise CellGone("a rank of the cell does not answer") from error
