"""What a checkpoint of ours says about itself: version, type, digest, and the hash of each file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from gyre.words.errors import ModelError

MANIFEST = "gyre.json"
FORMAT = 1
_CHUNK_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One safetensors file of a checkpoint."""

    file: str
    num_bytes: int
    xxh3: str
    """128 bits of the whole file, in hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stands:
    """One tensor of a checkpoint and the file it is in."""

    name: str
    shape: tuple[int, ...]
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checkpoint whose files can be told from any others."""

    format: int
    version: int
    """Updates applied to the weights (SPEC 2.4)."""
    dtype: str
    """Type of every tensor, as torch spells it without its own name: bfloat16."""
    digest: str
    """Of a network that holds these weights in this type."""
    shards: tuple[Shard, ...]
    tensors: tuple[Stands, ...]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    text = json.dumps(asdict(manifest), indent=1) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """None for a folder that others made; raises ModelError for what is no manifest."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        if read["format"] != FORMAT:
            message = f"{path}: expected format {FORMAT}, found {read['format']!r}"
            raise ModelError(message)
        shards = tuple(Shard(**one) for one in read.pop("shards"))
        tensors = tuple(
            Stands(name=one["name"], shape=tuple(one["shape"]), file=one["file"])
            for one in read.pop("tensors")
        )
        manifest = Manifest(shards=shards, tensors=tensors, **read)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        message = f"{path}: expected the manifest of a checkpoint: {error}"
        raise ModelError(message) from error
    _check_types(path, manifest)
    return manifest


def _check_types(path: Path, manifest: Manifest) -> None:
    whole = isinstance(manifest.version, int) and all(
        isinstance(one.num_bytes, int) for one in manifest.shards
    )
    texts = [manifest.dtype, manifest.digest]
    texts += [text for one in manifest.shards for text in (one.file, one.xxh3)]
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


def verify(folder: Path, manifest: Manifest) -> None:
    """Every file is the one that was written; raises ModelError that names the first other."""
    for shard in manifest.shards:
        path = folder / Path(shard.file).name
        try:
            found = describe_file(path)
        except OSError as error:
            message = f"{path}: expected {shard.num_bytes} bytes of weights: {error.strerror}"
            raise ModelError(message) from error
        if found != shard:
            message = (
                f"{path}: expected {shard.num_bytes} bytes with hash {shard.xxh3}, "
                f"found {found.num_bytes} with {found.xxh3}"
            )
            raise ModelError(message)
