"""Simulated cells that wait for each other, as a collective does."""

import asyncio

from gyre.types.errors import CellError


class Meeting:
    """One collective: it gives all members what each brought, or fails for all of them."""

    def __init__(self, members):
        self._members = list(members)
        self._brought = {}
        self._came = asyncio.get_running_loop().create_future()

    @property
    def is_over(self):
        return self._came.done()

    async def met(self, cell, brought, within_s):
        self._brought[cell.number] = brought
        cell.node.at_death.append(self._broken)
        if len(self._brought) == len(self._members):
            self._came.set_result(None)
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._came)
        except TimeoutError:
            self._broken()
            raise CellError("a group: its members did not come together") from None
        except ConnectionError as error:
            raise CellError(f"a group: {error}") from error
        return dict(self._brought)

    def _broken(self):
        if not self._came.done():
            self._came.set_exception(ConnectionError("a member is gone"))
            self._came.exception()
