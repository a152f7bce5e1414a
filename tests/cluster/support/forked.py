"""What a nursery of the tests forks."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from gyre.cluster import fork_server

ORDERS = {signal.SIGUSR1}
IMPORTED_BY = os.getpid()


def run_forked(arguments: Sequence[str], told: str) -> int:
    match arguments:
        case ["say", path]:
            Path(path).write_text(f"{IMPORTED_BY} {os.getpid()} {os.getsid(0)} {told}")
            return 7
        case ["ignore SIGTERM"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            fork_server.ready("http://here")
            time.sleep(3600)
        case ["serve"]:
            fork_server.ready("http://here")
            time.sleep(3600)
        case ["print and serve"]:
            print("a library says hello", flush=True)
            fork_server.ready("http://here")
            time.sleep(3600)
        case ["hold on"]:
            time.sleep(3600)
        case ["wait for order", path]:
            signal.signal(signal.SIGUSR1, lambda *_: Path(path).write_text("heard"))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ORDERS)
            # The order may still be on its way to a child that was quick.
            while not Path(path).exists():
                time.sleep(0.01)
            return 0
        case ["fail"]:
            message = "a newborn that cannot be"
            raise RuntimeError(message)
    return 0
