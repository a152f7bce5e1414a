"""Folders in memory that processes of a run share: none outlives a run that goes on."""

import shutil
from pathlib import Path

from gyre.durable import replace
from gyre.run.plans import Places

PREFIX = "gyre-"
"""What their names begin with; only what is named so is believed to be one."""


def note(places: Places) -> None:
    """So that whoever goes on removes what could not be removed here."""
    replace(places.shares, f"{places.share}\n".encode())


def remove_earlier(places: Places) -> None:
    """Those of whoever was killed before, if any."""
    lines = places.shares.read_text().splitlines() if places.shares.exists() else []
    for share in map(Path, lines):
        if share.name.startswith(PREFIX) and share != places.share:
            shutil.rmtree(share, ignore_errors=True)
