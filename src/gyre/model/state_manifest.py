"""What a checkpoint says of its optimizer's state: version, layout, the hash of each file."""

from pathlib import Path

import msgspec

from gyre.model.manifest import Shard, sealed, unsealed, verify_files
from gyre.types.errors import ModelError

OPTIMIZER = "optimizer"
"""Folder within a checkpoint's; it appears whole, after the weights."""
STATE = "optimizer.json"
FORMAT = 1


class StateManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of an optimizer whose files can be told from any others."""

    format: int
    version: int
    """Of the weights that it goes on from (SPEC 2.4)."""
    digest: str
    """Of those weights, which are its masters rounded to the network's type."""
    num_steps: int
    stages: int
    shards: int
    ranks: tuple[tuple[Shard, ...], ...]
    """Files by rank of the cell."""


def write_state_manifest(folder: Path, manifest: StateManifest) -> None:
    (folder / STATE).write_text(sealed(msgspec.to_builtins(manifest)), encoding="utf-8")


def read_state_manifest(checkpoint: Path) -> StateManifest | None:
    """None where there is no optimizer's state; raises ModelError for what is no manifest."""
    path = checkpoint / OPTIMIZER / STATE
    try:
        text = path.read_text(encoding="utf-8")
        found = msgspec.convert(unsealed(text), type=StateManifest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, AttributeError, RecursionError) as error:
        message = f"{path}: expected the manifest of an optimizer's state: {error}"
        raise ModelError(message) from error
    if found.format != FORMAT:
        message = f"{path}: expected format {FORMAT}, found {found.format}"
        raise ModelError(message)
    return found


def require_state_manifest(checkpoint: Path) -> StateManifest:
    """ModelError also where there is no optimizer's state."""
    found = read_state_manifest(checkpoint)
    if found is None:
        message = f"{checkpoint / OPTIMIZER}: expected the optimizer's state, found none"
        raise ModelError(message)
    return found


def verify_state(checkpoint: Path, manifest: StateManifest) -> None:
    """Every file of the state is the one that was written; ModelError names the first other."""
    files = (one for rank in manifest.ranks for one in rank)
    verify_files(checkpoint / OPTIMIZER, files)
