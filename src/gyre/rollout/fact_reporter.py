"""Posts the facts of an execution to a URL, in order, until they are taken or time is up."""

import json
import queue
import threading
import time
import urllib.error
import urllib.request
from typing import Self

from gyre.rollout.facts import FactEntry
from gyre.types.ids import ExecutionId

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
