"""Removes what an execution said and left behind from a run folder; that it was there stays.

Rule 1: its log is sealed and nothing of it runs, or nothing is erased.
Rule 2: after a death half way, asking again finishes it.
"""

import dataclasses
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gyre.rollout import facts
from gyre.rollout.facts import FACTS_FILE
from gyre.rollout.spec import ORDER_FILE
from gyre.storage import call_log, files, safe_dir
from gyre.storage.files import replace, sync
from gyre.storage.wal import WriteAheadLog, shards
from gyre.types.call_records import LogOpened, LogSealed
from gyre.types.errors import ConfigError

ATTEMPTS = "attempts"
KEPT = frozenset({ORDER_FILE, FACTS_FILE, facts.OUTCOME_FILE, files.LOCK_FILE})
"""Files that say which task it was, how it ended and what it scored, which others count on."""


def erase(run: Path, names: Sequence[str]) -> None:
    """Of each execution only its task, ending and score are left.

    ConfigError if one is unknown or not over, or if a proxy serves the run; then none is erased.
    """
    if not (run / "executions").is_dir():
        raise ConfigError(f"{run}: expected a run folder with call logs in executions/, found none")
    with ExitStack() as stack:
        # Keeps proxies out, and forgets the copies of records that they hold themselves.
        for shard in shards(run):
            stack.callback(WriteAheadLog(run, shard=shard).close)
        opened = {name: _over(run, name) for name in names}
        for name, first in opened.items():
            _erase(run, name, first)


def _over(run: Path, name: str) -> LogOpened:
    """The first record of an execution's log, which no proxy will add to."""
    path = call_log.path_of(run, name)
    if "/" in name or not path.is_file():
        raise ConfigError(f"{run}: no execution {name}")
    records = call_log.read(path).records
    if not records or not isinstance(records[0], LogOpened):
        raise ConfigError(f"{path}: expected the record that opens a log, found none")
    attempt = run / ATTEMPTS / name
    if not isinstance(records[-1], LogSealed) or files.is_taken(attempt):
        message = f"execution {name} is open: close it, or end its run, before it is erased"
        raise ConfigError(message)
    return records[0]


def _erase(run: Path, name: str, opened: LogOpened) -> None:
    attempt = run / ATTEMPTS / name
    if attempt.is_dir():
        for path in attempt.iterdir():
            if path.name not in KEPT:
                safe_dir.remove(path)
        sync(attempt)
    path = call_log.path_of(run, name)
    for aside in path.parent.glob(f"{path.name}.*"):
        aside.unlink()
    # Neither its key nor its messages can be guessed from what is written now.
    blank = dataclasses.replace(
        opened, key_hash=secrets.token_bytes(32), salt=secrets.token_bytes(16)
    )
    sealed = LogSealed(at=time.time())
    replace(path, call_log.MAGIC + call_log.frame(blank) + call_log.frame(sealed), is_secret=True)
