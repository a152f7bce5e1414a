"""Folders that processes of a run share, in memory if they can: none outlives its run."""

import secrets
import shutil
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from gyre.controller.process_specs import Places
from gyre.storage.durable import replace

MEMORY = Path("/dev/shm")
PREFIX = "gyre-"
"""What their names begin with; only what is named so is believed to be one."""


def opened(run: Path, stack: AsyncExitStack, *, in_memory: bool = True) -> Places:
    """A run's places with a share of their own, which goes with the stack.

    It is noted before it is there, so that whoever goes on removes what could not be removed here.
    Not in memory, it lies in the run's folder, because processes of other machines see that.
    """
    run.mkdir(parents=True, exist_ok=True, mode=0o700)
    memory = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    memory = memory if in_memory else run.absolute()
    places = Places(run=run.absolute(), share=memory / f"{PREFIX}{secrets.token_hex(8)}")
    _note(places, [*_noted(places), places.share])
    places.share.mkdir(mode=0o700)
    stack.callback(shutil.rmtree, places.share, ignore_errors=True)
    return places


def remove_earlier(places: Places) -> None:
    """Those of whoever was killed before, if any; only for who alone works on the run."""
    for share in _noted(places):
        if share.name.startswith(PREFIX) and share != places.share:
            shutil.rmtree(share, ignore_errors=True)
    # A full disk leaves names of what is gone, which does no harm.
    with suppress(OSError):
        _note(places, [places.share])


def _noted(places: Places) -> list[Path]:
    lines = places.shares.read_text().splitlines() if places.shares.exists() else []
    return [Path(line) for line in lines]


def _note(places: Places, shares: list[Path]) -> None:
    replace(places.shares, "".join(f"{one}\n" for one in shares).encode())
