"""An agent program that makes one call, says what it was given, and waits to be let go."""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

PATIENCE_S = 1800.0


def main(folder):
    """`folder` is where the test and this program meet."""
    given = dict(os.environ)
    body = {"model": "m", "messages": [{"role": "user", "content": "the prompt at rest"}]}
    request = urllib.request.Request(
        given["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "authorization": f"Bearer {given['OPENAI_API_KEY']}",
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        status = answer.status
    fresh = folder / "given.writing"
    fresh.write_text(json.dumps({"status": status, "pid": os.getpid(), "environment": given}))
    fresh.rename(folder / "given.json")
    until = time.monotonic() + PATIENCE_S
    while not (folder / "go").exists() and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
