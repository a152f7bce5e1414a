"""The checkpoints of a run: listed, verified by their manifests, pruned and swept.

Rule 1: what bears a version's name is whole; anything half made or half removed has another name.
Rule 2: a checkpoint whose hashes do not hold is never used, and the one before it is.
"""

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from gyre.storage.files import sync
from gyre.types.errors import ModelError

MANIFEST = "gyre.json"
FORMAT = 2
READABLE = (1, 2)
"""Format 1 hashes the weights alone, and has no seal."""
SEAL = "seal"
"""Field with the hash of all others, so that no two manifests are taken for one."""
_CHUNK_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of a checkpoint."""

    file: str
    num_bytes: int
    xxh3: str
    """128 bits of the whole file, in hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLocation:
    """One tensor of a checkpoint and the file it is in."""

    name: str
    shape: tuple[int, ...]
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """The files and tensors of a checkpoint, each file with its hash."""

    format: int
    version: int
    """Updates applied to the weights (SPEC 2.4)."""
    dtype: str
    """Type of every tensor, as torch spells it without its own name: bfloat16."""
    digest: str
    """Of a network that holds these weights in this type."""
    shards: tuple[Shard, ...]
    """Files of weights."""
    tensors: tuple[TensorLocation, ...]
    others: tuple[Shard, ...] = ()
    """All other files, but for this one."""


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    (folder / MANIFEST).write_text(sealed(asdict(manifest)), encoding="utf-8")


def sealed(plain: dict[str, Any]) -> str:
    """JSON that says by itself whether it is what was written."""
    return json.dumps(plain | {SEAL: _seal(plain)}, indent=1) + "\n"


def unsealed(text: str) -> dict[str, Any]:
    """What was sealed; ValueError where anything about it is different."""
    read: dict[str, Any] = json.loads(text)
    if read.pop(SEAL) != _seal(read):
        message = "its seal is broken"
        raise ValueError(message)
    return read


def _seal(plain: dict[str, Any]) -> str:
    return xxhash.xxh3_128(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> CheckpointManifest | None:
    """None for a folder that others made; raises ModelError for what is no manifest."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        read = json.loads(text)
        if read["format"] not in READABLE:
            message = f"{path}: expected format {FORMAT}, found {read['format']!r}"
            raise ModelError(message)
        if read["format"] == FORMAT:
            read = unsealed(text)
        shards = tuple(Shard(**shard) for shard in read.pop("shards"))
        others = tuple(Shard(**shard) for shard in read.pop("others", ()))
        tensors = tuple(
            TensorLocation(name=tensor["name"], shape=tuple(tensor["shape"]), file=tensor["file"])
            for tensor in read.pop("tensors")
        )
        manifest = CheckpointManifest(shards=shards, tensors=tensors, others=others, **read)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        message = f"{path}: expected the manifest of a checkpoint: {error}"
        raise ModelError(message) from error
    _check_types(path, manifest)
    return manifest


def _check_types(path: Path, manifest: CheckpointManifest) -> None:
    files = (*manifest.shards, *manifest.others)
    whole = isinstance(manifest.version, int) and all(
        isinstance(file.num_bytes, int) for file in files
    )
    texts = [manifest.dtype, manifest.digest]
    texts += [text for file in files for text in (file.file, file.xxh3)]
    if not whole or not all(isinstance(text, str) for text in texts):
        message = f"{path}: expected the manifest of a checkpoint, found fields of other types"
        raise ModelError(message)


def describe_file(path: Path) -> Shard:
    """A file's size and hash, read in pieces."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            state.update(chunk)
    return Shard(file=path.name, num_bytes=path.stat().st_size, xxh3=state.hexdigest())


def verify(folder: Path, manifest: CheckpointManifest) -> None:
    """Every file is the one that was written; raises ModelError that names the first other."""
    verify_files(folder, (*manifest.shards, *manifest.others))


def verify_files(folder: Path, files: Iterable[Shard]) -> None:
    """As `verify`; a name reaches no file of another folder."""
    for shard in files:
        path = folder / Path(shard.file).name
        try:
            found = describe_file(path)
        except OSError as error:
            message = f"{path}: expected {shard.num_bytes} bytes: {error.strerror}"
            raise ModelError(message) from error
        if found != shard:
            message = (
                f"{path}: expected {shard.num_bytes} bytes with hash {shard.xxh3}, "
                f"found {found.num_bytes} with {found.xxh3}"
            )
            raise ModelError(message)


OPTIMIZER = "optimizer"
"""Folder within a checkpoint's; it appears whole, after the weights."""
STATE = "optimizer.json"
STATE_MANIFEST_FORMAT = 1


class StateManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of an optimizer's state, by rank, each with its hash."""

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
    if found.format != STATE_MANIFEST_FORMAT:
        message = f"{path}: expected format {STATE_MANIFEST_FORMAT}, found {found.format}"
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
    files = (file for rank in manifest.ranks for file in rank)
    verify_files(checkpoint / OPTIMIZER, files)


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
