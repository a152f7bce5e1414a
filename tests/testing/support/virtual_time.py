"""An event loop whose time passes only by waiting, so that seconds are exact and cost none."""

import asyncio
import selectors
from contextlib import aclosing

from tests.waiting import PATIENCE_S

ENOUGH_TURNS = 200
"""More than anything here needs in which nothing takes time."""


LEAST_S = 1e-12


class _Hurried(selectors.SelectSelector):
    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.num_threads = 0
        """That do something for the loop, which takes no time of it."""

    def select(self, timeout=None):
        # Without a timer somebody outside has to come; a thread does, whatever timers there are.
        waits = timeout is None or (timeout > 0 and self.num_threads > 0)
        found = super().select(PATIENCE_S if waits else 0)
        if waits and not found:
            message = "everybody waits, and nobody comes"
            raise RuntimeError(message)
        if not found:
            # Never nothing, so that a timer that was rounded to the present moment does come.
            self.now_s += timeout or LEAST_S
        return found


class HurriedLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._hurried = _Hurried()
        super().__init__(self._hurried)

    def time(self):
        return self._hurried.now_s

    def run_in_executor(self, executor, func, *args):
        done = super().run_in_executor(executor, func, *args)
        self._hurried.num_threads += 1
        done.add_done_callback(self._is_back)
        return done

    def _is_back(self, _):
        self._hurried.num_threads -= 1


def hurried(flow):
    """What the flow returns, in a loop of its own that begins at 0 s."""
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        return runner.run(flow)


def now_s():
    return round(asyncio.get_running_loop().time(), 6)


async def settle():
    """Everything has happened that needs no time."""
    for _ in range(ENOUGH_TURNS):
        await asyncio.sleep(0)


class Reader:
    """Reads one ask in a task of its own; what came and when."""

    def __init__(self, engine, ask):
        self.chunks = []
        self.times_s = []
        self.task = asyncio.create_task(self._read(engine, ask))

    @property
    def ids(self):
        return [one for chunk in self.chunks for one in chunk.ids]

    @property
    def versions(self):
        return [chunk.version for chunk in self.chunks for _ in chunk.ids]

    @property
    def finish(self):
        return self.chunks[-1].finish if self.chunks else None

    async def _read(self, engine, ask):
        async with aclosing(engine.generate(ask)) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)
                self.times_s.append(now_s())
        return self
