"""Orders to a scripted engine: how it fails, and when a reply stands still."""

import json
import urllib.request

from tests.waiting import PATIENCE_S


def steer(engine, what, how):
    """An order to a scripted engine, which answers once it holds."""
    order = urllib.request.Request(f"{engine.url}/script/{what}", data=json.dumps(how).encode())
    with urllib.request.urlopen(order, timeout=PATIENCE_S) as answer:
        return json.load(answer)
