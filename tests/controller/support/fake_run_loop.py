"""A run loop for one component alone: it keeps what is recorded, and decides nothing."""

import asyncio


class FakeRunLoop:
    """Time stands still unless a test moves it; tasks are those of the test's own loop."""

    now = 0.0

    def __init__(self):
        self.recorded = []
        self.tasks = []
        self.reasons = []

    def record(self, event):
        self.recorded.append(event)

    async def settled(self):
        await asyncio.sleep(0)

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    def stop(self, reason):
        self.reasons.append(reason)
