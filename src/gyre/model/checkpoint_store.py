"""The checkpoints of a run: listed, verified by their manifests, pruned and swept.

Rule 1: what bears a version's name is whole; anything half made or half removed has another name.
Rule 2: a checkpoint whose hashes do not hold is never used, and the one before it is.
"""

import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from gyre.model.manifest import (
    OPTIMIZER,
    read_manifest,
    require_state_manifest,
    verify,
    verify_state,
)
from gyre.storage.files import sync
from gyre.types.errors import ModelError

EVALUATIONS = "evaluations"
"""Folder of a run in which evaluations of its weights are kept."""

CHECKPOINTS = "checkpoints"
"""Folder of a run's."""
VERSION = re.compile(r"v(\d{6,})")
DAMAGED = ".damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Weights of one version, durable, as a rule with the state of the optimizer."""

    version: int
    folder: Path
    digest: str
    """Of a network that holds the weights."""
    has_optimizer: bool


def name_of(version: int) -> str:
    return f"v{version:06d}"


def listed(folder: Path) -> list[Checkpoint]:
    """What is there by its name and manifest, oldest first; no hash is checked."""
    found = []
    for version, path in sorted(_versions(folder).items()):
        try:
            found.append(_read(path, version))
        except ModelError:
            continue
    return found


def verified(folder: Path, *, with_optimizer: bool = False) -> Checkpoint:
    """One checkpoint, every hash of which holds; ModelError says what is not so."""
    name = VERSION.fullmatch(folder.name)
    if name is None:
        message = f"{folder}: expected a checkpoint named by its version: {name_of(7)}"
        raise ModelError(message)
    found = _read(folder, int(name[1]))
    manifest = read_manifest(folder)
    assert manifest is not None
    verify(folder, manifest)
    if with_optimizer:
        state = require_state_manifest(folder)
        _check_version(folder / OPTIMIZER, state.version, found.version)
        verify_state(folder, state)
    return found


def _ignored(folder: Path, reason: str) -> None:
    """The caller did not ask for reasons."""


def newest(
    folder: Path,
    *,
    with_optimizer: bool = False,
    most: int | None = None,
    refused: Callable[[Path, str], None] = _ignored,
) -> Checkpoint | None:
    """The newest whose hashes hold, of version `most` or older; `refused` hears of the others.

    One that never had an optimizer's state is passed over where that is wanted, and is no fault.
    """
    for version, path in sorted(_versions(folder).items(), reverse=True):
        if most is not None and version > most:
            continue
        if with_optimizer and not (path / OPTIMIZER).exists():
            continue
        try:
            return verified(path, with_optimizer=with_optimizer)
        except ModelError as error:
            refused(path, str(error))
    return None


def set_aside(folder: Path) -> Path:
    """A damaged checkpoint is where a person finds it, and its version can be written again."""
    aside = folder.with_name(folder.name + DAMAGED)
    if aside.exists():
        shutil.rmtree(aside)
    folder.rename(aside)
    sync(folder.parent)
    return aside


def prune(
    folder: Path, *, keep: int, in_use: Collection[int], optimizers: int | None = None
) -> list[int]:
    """The newest few stay, and what is in use; versions that are gone.

    The newest with an optimizer's state stays with it in any case, because a core can begin from
    no other. Of those that stay, `optimizers` keep theirs.
    """
    found = listed(folder)
    whole = [checkpoint.version for checkpoint in found if checkpoint.has_optimizer]
    stay = (
        {checkpoint.version for checkpoint in found[len(found) - keep :]}
        if keep < len(found)
        else None
    )
    gone = []
    for checkpoint in found:
        if stay is None or checkpoint.version in {*stay, *in_use, *whole[-1:]}:
            continue
        _remove(checkpoint.folder)
        gone.append(checkpoint.version)
    if optimizers is not None:
        for kept in found:
            if kept.version not in gone and kept.version in whole[:-optimizers]:
                _remove(kept.folder / OPTIMIZER)
    return gone


def sweep(folder: Path) -> list[Path]:
    """Removes what a process left half made or half removed; no process may write meanwhile."""
    places = [folder, *_versions(folder).values()]
    left = [path for place in places if place.is_dir() for path in place.glob(".*")]
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return left


def _versions(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    named = ((VERSION.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(name[1]): path for name, path in named if name and path.is_dir()}


def _read(folder: Path, version: int) -> Checkpoint:
    manifest = read_manifest(folder)
    if manifest is None:
        message = f"{folder}: expected the manifest of a checkpoint, found none"
        raise ModelError(message)
    _check_version(folder, manifest.version, version)
    return Checkpoint(
        version=version,
        folder=folder,
        digest=manifest.digest,
        has_optimizer=(folder / OPTIMIZER).is_dir(),
    )


def _check_version(folder: Path, found: int, wanted: int) -> None:
    if found != wanted:
        message = f"{folder}: expected version {wanted}, found {found}"
        raise ModelError(message)


def _remove(folder: Path) -> None:
    """First out of the way under one name, because a removal takes many steps."""
    aside = folder.with_name(f".{folder.name}.removed")
    if aside.exists():
        shutil.rmtree(aside)
    folder.rename(aside)
    shutil.rmtree(aside)
