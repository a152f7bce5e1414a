"""Manifests of weights and optimizer state."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

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
