"""Talks to a running proxy's controls, found through its run folder."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from gyre.words.errors import ConfigError

TOKEN_FILE = "admin.token"
ADDRESS_FILE = "proxy.url"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Goes to the run's own proxy, whatever proxy the environment names for the web."""


def control(folder: Path, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the proxy answers; `url` is where its execution is reached, if it names one."""
    try:
        base = (folder / ADDRESS_FILE).read_text().strip()
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
        message = f"{base}: {json.load(error)['error']['message']}"
        raise ConfigError(message) from error
    except OSError as error:
        message = f"no proxy answers at {base}: {error}"
        raise ConfigError(message) from error
    if "path" in found:
        found["url"] = base + found["path"]
    return found


def environment(url: str, key: str) -> dict[str, str]:
    """Variables that point the usual agent programs at an execution."""
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_MODEL": "policy",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": key,
    }


def read_key(path: Path | None) -> str | None:
    """The key in a file; None without one."""
    if path is None:
        return None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: expected a file with a key: {error}"
        raise ConfigError(message) from error
    if not key or not key.isascii():
        message = f"{path}: expected a key of ASCII letters, found none"
        raise ConfigError(message)
    return key
