"""Sends control requests to a running proxy, found through its run folder."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from gyre.storage.files import PROXY, TOKEN_FILE, proxy_address_file
from gyre.types.errors import ConfigError
from gyre.types.ids import shard_of

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Goes to the run's own proxy, and never by a web proxy that the environment names."""


def address_of(folder: Path, execution: str | None) -> str:
    """Where the shard listens that an execution belongs to; the first, if none is named."""
    # A run has as many shards for as long as it lasts.
    shards = 1 + len(list(folder.glob(f"{PROXY}-*.url")))
    shard = 0 if execution is None else shard_of(execution, shards)
    return proxy_address_file(folder, shard).read_text().strip()


def control(
    folder: Path, method: str, path: str, body: dict[str, Any], *, execution: str | None = None
) -> dict[str, Any]:
    """What the proxy answers; `url` is where its execution is reached, if it names one."""
    try:
        base = address_of(folder, execution)
        token = (folder / TOKEN_FILE).read_text().strip()
    except OSError as error:
        message = f"{folder}: expected the run folder of a proxy: {error.strerror}"
        raise ConfigError(message) from error
    request = urllib.request.Request(
        f"{base}/gyre/{path}",
        method=method,
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
    )
    try:
        with _DIRECT.open(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{base}: {json.load(error)['error']['message']}") from error
    except OSError as error:
        raise ConfigError(f"no proxy answers at {base}: {error}") from error
    if "path" in found:
        found["url"] = base + found["path"]
    return found
