"""An event loop whose time is made up, and whose processes may stop or die at any moment.

Rule 1: nothing waits: when nobody has anything to do, it is the time of the next timer.
Rule 2: what belongs to a dead process never runs again, not even its `finally`; what belongs to a
stopped one runs when it is continued.
"""

import asyncio
import heapq
from contextvars import ContextVar, copy_context

NODE = ContextVar("NODE", default=None)
"""The process that the present callback belongs to."""


MOST_STEPS = 80_000
"""Rounds of the loop after which a run that goes on does so in a circle."""


TICK_S = 1e-7
"""What a round of the loop takes."""


class Stuck(Exception):
    """Nobody will ever do anything again, or not within the time that a run may take."""


class Node:
    """One simulated process."""

    def __init__(self, name, pid):
        self.name = name
        self.pid = pid
        self.is_dead = False
        self.is_stopped = False
        self.waiting = []
        """What it would have done while it was stopped, in order."""
        self.tasks = []
        """Kept, because a coroutine that nobody holds is closed, and a dead process closes none."""
        self.at_death = []
        """Called once, with no arguments, when it dies."""
        self.signals = {}

    def __repr__(self):
        return self.name

    def context(self):
        found = copy_context()
        found.run(NODE.set, self)
        return found


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self):
        if _may_run(self):
            super()._run()


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self):
        if _may_run(self):
            super()._run()


def _may_run(handle):
    node = handle._context.get(NODE)
    if node is None:
        return True
    if node.is_stopped and not node.is_dead:
        node.waiting.append(handle)
        return False
    return not node.is_dead


class VirtualLoop(asyncio.BaseEventLoop):
    """Callbacks run one after the other in one thread, in an order that a seed decides alone."""

    def __init__(self, *, rng, most_s):
        super().__init__()
        self._selector = self
        self._clock_resolution = 1e-9
        self._now = 0.0
        self._most_s = most_s
        self._rng = rng
        self.num_steps = 0
        self.uncaught = lambda error: None
        """Told of what a callback raises; tasks that nobody waits for any more are dead ones'."""
        self.set_exception_handler(self._note_error)
        self.set_task_factory(_kept_task)

    def time(self):
        return self._now

    def select(self, timeout):
        self.num_steps += 1
        # Work takes time, however little, so that nobody waits in vain for a clock to go on.
        self._now += TICK_S
        if timeout is None:
            raise Stuck("nothing is under way and no timer is set")
        if self.num_steps > MOST_STEPS:
            raise Stuck(f"busy without an end at {self._now:g} s")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0]._when)
            if self._now > self._most_s:
                raise Stuck(f"not over after {self._most_s:g} s")
        return []

    def close(self):
        self._selector = None
        super().close()

    def _process_events(self, event_list):
        pass

    def _write_to_self(self):
        pass

    def _call_soon(self, callback, args, context):
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when, callback, *args, context=None):
        self._check_closed()
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def go_on(self, node):
        """SIGCONT."""
        node.is_stopped = False
        waiting, node.waiting = node.waiting, []
        # These handles and no others, because whoever holds one may still cancel it.
        self._ready.extend(waiting)

    def run_in_executor(self, executor, func, *args):
        """A thread, as its owner sees it: done a little later, or never if its process dies."""
        done = self.create_future()
        self.call_later(self._rng.expovariate(1000.0), _do, done, func, args)
        return done

    def add_signal_handler(self, sig, callback, *args):
        node = NODE.get()
        if node is not None:
            node.signals[sig] = (callback, args, copy_context())

    def remove_signal_handler(self, sig):
        node = NODE.get()
        return node is not None and node.signals.pop(sig, None) is not None

    def _note_error(self, loop, context):
        if context.get("message", "").startswith("Exception in callback"):
            self.uncaught(context["exception"])


def _do(done, func, args):
    if done.cancelled():
        return
    try:
        done.set_result(func(*args))
    except Exception as error:
        done.set_exception(error)


def _kept_task(loop, coro, *, context=None, **more):
    task = asyncio.Task(coro, loop=loop, context=context, **more)
    node = NODE.get() if context is None else context.get(NODE)
    if node is not None:
        node.tasks.append(task)
    return task
