"""A process that shows runs to a browser of this machine, until it is told to stop."""

import asyncio
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop

from gyre.net.http_server import listener, serve_until_told
from gyre.observability.dashboard.journal_follower import FollowedRun, watched
from gyre.observability.dashboard.page import DashboardServer
from gyre.observability.dashboard.trees import RunTrees

HOST = "127.0.0.1"


def show(
    places: list[Path], *, port: int, on_start: Callable[[str], None], waits: bool = False
) -> None:
    """Runs until SIGINT or SIGTERM; `on_start` is given the link, with its key.

    Runs that it `waits` for may not have begun.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_show(watched(places, waits=waits), port, on_start))


async def _show(runs: dict[str, FollowedRun], port: int, on_start: Callable[[str], None]) -> None:
    key = secrets.token_urlsafe(24)
    page = DashboardServer(runs, key=key, trees=RunTrees)
    with ExitStack() as stack:
        on = listener(HOST, port)
        stack.callback(on.close)
        link = f"http://{HOST}:{on.getsockname()[1]}/?key={key}"
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(one.follow()) for one in runs.values()]
            await serve_until_told(page, on, on_start=lambda: on_start(link), stopping=page.stop)
            for task in following:
                task.cancel()


def main(folder: Path) -> None:
    """Shows a run that is about to begin, until whoever holds the other end of stdin is gone."""

    def wait_end() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    def on_start(link: str) -> None:
        threading.Thread(target=wait_end, daemon=True).start()
        print(link, flush=True)

    show([folder], port=0, on_start=on_start, waits=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
