"""The outcome file of an execution: whole or absent, for whoever comes back later."""

from pathlib import Path

import msgspec

from gyre.storage.durable import replace
from gyre.types.errors import LogDamaged
from gyre.types.outcomes import OutcomeRecord

OUTCOME_FILE = "outcome.json"
FORMAT = 1


def write(folder: Path, record: OutcomeRecord) -> None:
    """The file says this, durably; a reader sees it or what was there before, never a part."""
    replace(folder / OUTCOME_FILE, msgspec.json.encode(record))


def read(folder: Path) -> OutcomeRecord | None:
    """What became of the execution; None while it is not terminated."""
    path = folder / OUTCOME_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(data, type=OutcomeRecord)
    except msgspec.MsgspecError as error:
        message = f"{path}: not an outcome file: {error}"
        raise LogDamaged(message) from error
    if found.format != FORMAT:
        message = f"{path}: expected format {FORMAT}, found {found.format}"
        raise LogDamaged(message)
    return found
