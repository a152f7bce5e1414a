"""A model's config.json, read and checked: its architecture, its sizes, and what it needs of us."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gyre.types.errors import ModelError

CONFIG = "config.json"

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""What `model_type` may be, with the name that transformers has for it."""

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim")
_SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ROPE_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Rotary embeddings whose angles do not depend on how long the text is, and what each needs."""

_STRETCHED = ("llama3", "yarn")
"""Those that also need to know how long the texts were that it was first trained on."""
_YARN_OPTIONS = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model's config.json, checked: a network that Gyre can build."""

    where: str
    """The file it was read from, for messages."""
    model_type: str
    fields: Mapping[str, Any]
    """Arguments of the configuration class that transformers has for the type."""


def read_description(folder: Path) -> Description:
    """What a folder's config.json says; raises ModelError, also for what is not supported."""
    path = folder / CONFIG
    return describe(_read(folder, path), where=str(path))


def describe(config: Mapping[str, Any], *, where: str) -> Description:
    """A configuration, checked; fields that change nothing here are left out."""
    look = _Fields(config, where)
    kind = config.get("model_type")
    known = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if known is None or (config.get("architectures") or [known]) != [known]:
        look.refuse("model_type", kind, f"one of {', '.join(ARCHITECTURES)}, as a causal model")
    if config.get("quantization_config"):
        look.refuse("quantization_config", "one", "plain weights")
    _refuse_windows(config, look)
    fields: dict[str, Any] = {"architectures": [known]}
    fields |= {name: look.size(name) for name in _SIZES}
    for name in _OPTIONAL_SIZES:
        if config.get(name) is not None:
            fields[name] = look.size(name)
    heads = fields["num_attention_heads"]
    kv_heads = fields.setdefault("num_key_value_heads", heads)
    if heads % kv_heads:
        look.refuse("num_key_value_heads", kv_heads, f"a divisor of the {heads} heads")
    _refuse_uneven_heads(fields, look)
    fields |= {name: look.switch(name) for name in _SWITCHES if name in config}
    fields |= {name: look.token(name) for name in _TOKENS if name in config}
    if config.get("hidden_act", "silu") != "silu":
        look.refuse("hidden_act", config["hidden_act"], "silu")
    if "rms_norm_eps" in config:
        fields["rms_norm_eps"] = look.number(config, "rms_norm_eps")
    fields["rope_parameters"] = _rope(config, look)
    return Description(where=where, model_type=str(kind), fields=fields)


def _read(folder: Path, path: Path) -> dict[str, Any]:
    if not folder.is_dir():
        message = (
            f"{folder}: expected tiny, smollm2 or a folder with a config.json and safetensors, "
            "found no folder"
        )
        raise ModelError(message)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        message = f"{path}: expected the model's configuration, found no such file"
        raise ModelError(message) from error
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: expected a JSON object: {error}"
        raise ModelError(message) from error
    if not isinstance(config, dict):
        message = f"{path}: expected a JSON object, found a {type(config).__name__}"
        raise ModelError(message)
    return config


def _refuse_windows(config: Mapping[str, Any], look: "_Fields") -> None:
    """Every token sees all before it: what asks for less is not computed as it was trained."""
    if config.get("use_sliding_window"):
        look.refuse("use_sliding_window", True, "full attention")
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds):
        look.refuse("layer_types", kinds, "full attention in every layer")


def _refuse_uneven_heads(fields: Mapping[str, Any], look: "_Fields") -> None:
    """Rotation turns pairs of a head's dimensions."""
    if "head_dim" in fields:
        if fields["head_dim"] % 2:
            look.refuse("head_dim", fields["head_dim"], "an even number")
        return
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    if hidden % heads:
        look.refuse("hidden_size", hidden, f"a multiple of the {heads} heads")
    if hidden // heads % 2:
        look.refuse("hidden_size", hidden, f"an even number for each of the {heads} heads")


def _rope(config: Mapping[str, Any], look: "_Fields") -> dict[str, Any]:
    """The rotary embedding, wherever the version of the file has put it."""
    given: Any = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        look.refuse("rope_parameters", given, "an object")
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in _ROPE_NUMBERS:
        look.refuse("rope_type", kind, f"one of {', '.join(_ROPE_NUMBERS)}")
    theta = given if "rope_theta" in given else {"rope_theta": _THETA} | dict(config)
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": look.number(theta, "rope_theta")}
    rope |= {name: look.number(given, name) for name in _ROPE_NUMBERS[kind]}
    for within in (given, config):
        if within.get("partial_rotary_factor") is not None:
            part = look.number(within, "partial_rotary_factor")
            if part != 1.0:
                look.refuse("partial_rotary_factor", part, "1, all of a head")
    if kind in _STRETCHED:
        name = "original_max_position_embeddings"
        rope[name] = look.size(name, within=given)
    if kind == "yarn":
        options = [name for name in _YARN_OPTIONS if given.get(name) is not None]
        rope |= {name: look.number(given, name) for name in options}
        if given.get("truncate") is not None:
            rope["truncate"] = look.switch("truncate", within=given)
    return rope


class _Fields:
    """The file's fields, each read as what it has to be."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where

    def refuse(self, name: str, found: object, expected: str) -> NoReturn:
        message = f"{self._where}: {name}: expected {expected}, found {found!r}"
        raise ModelError(message)

    def size(self, name: str, *, within: Mapping[str, Any] | None = None) -> int:
        value = (self._config if within is None else within).get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            self.refuse(name, value, "a positive whole number")
        return value

    def number(self, within: Mapping[str, Any], name: str) -> float:
        value = within.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            self.refuse(name, value, "a positive number")
        # Transformers takes no whole number where it wants another.
        return float(value)

    def switch(self, name: str, *, within: Mapping[str, Any] | None = None) -> bool:
        value = (self._config if within is None else within)[name]
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def token(self, name: str) -> int | list[int] | None:
        value = self._config[name]
        several = isinstance(value, list) and name == "eos_token_id"
        for token_id in value if several else [] if value is None else [value]:
            whole = isinstance(token_id, int) and not isinstance(token_id, bool)
            if not whole or not 0 <= token_id < self.size("vocab_size"):
                self.refuse(name, value, "an id within the vocabulary")
        return value  # type: ignore[no-any-return]
