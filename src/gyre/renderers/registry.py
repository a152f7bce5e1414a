"""Finds the renderer for a model: by its folder's name, its config, or its tokenizer."""

import json
from pathlib import Path
from typing import Any

from gyre.model.registry import model_folder
from gyre.renderers.chatml import ChatML, Markup
from gyre.renderers.families import FAMILIES, MODEL_RENDERER_MAP, Thinking
from gyre.renderers.family_renderer import FamilyRenderer
from gyre.renderers.tokenizer import PackageTokenizer
from gyre.types.errors import ConfigError, wrap_errors
from gyre.types.protocols import Renderer

CHATML = "chatml"

_BY_MODEL_TYPE = {
    "qwen3": "qwen3",
    "gpt_oss": "gpt-oss",
    "kimi_k25": "kimi-k2.5",
    "minimax_m2": "minimax-m2",
}
"""What config.json calls an architecture, where all that share it share a template."""


def load_renderer(
    model: str,
    *,
    family: str | None = None,
    thinking: Thinking = "all",
    enable_thinking: bool | None = None,
) -> Renderer:
    """The renderer of a known model, of a folder, or of a tokenizer.json; raises ConfigError.

    The family is the one given, or else follows from the folder's name, its config.json, or its
    tokenizer having ChatML's tokens.
    """
    path = _tokenizer_file(model_folder(model))
    name = _known_name(path)
    tokens = PackageTokenizer.load(path, name=name or str(path.parent))
    chosen = family or _family(name, path, tokens)
    if chosen == CHATML:
        if thinking != "all":
            raise ConfigError(f"thinking={thinking}: chatml keeps all thinking in history")
        return ChatML(tokens, enable_thinking=enable_thinking)
    if chosen not in FAMILIES:
        raise ConfigError(f"family: unknown {chosen!r}; {_known_families()}")
    return FamilyRenderer(chosen, tokens, thinking=thinking, enable_thinking=enable_thinking)


def _tokenizer_file(path: Path) -> Path:
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        return file
    if path.is_dir() and (path / "tiktoken.model").is_file():
        raise ConfigError(
            f"{path}: holds a tiktoken.model, but a tokenizer.json is needed; make one of it, "
            "which takes the packages transformers and tiktoken"
        )
    raise ConfigError(f"{path}: expected a folder with a tokenizer.json, or such a file")


def _known_name(path: Path) -> str | None:
    """The model's public name, as far as folder names tell it."""
    folders = [folder.name for folder in path.resolve().parents]
    for at, folder in enumerate(folders):
        # A cache names folders "models--owner--model", with snapshots below.
        whole = folder.removeprefix("models--").replace("--", "/")
        if whole in MODEL_RENDERER_MAP:
            return whole
        if at == 0:
            owned = f"{folders[1]}/{folder}" if len(folders) > 1 else folder
            same = [known for known in MODEL_RENDERER_MAP if known.split("/")[-1] == folder]
            if same:
                return owned if owned in same else same[0]
    return None


def _family(name: str | None, path: Path, tokens: PackageTokenizer) -> str:
    if name is not None:
        found: str = MODEL_RENDERER_MAP[name]
        return found
    kind = _config(path.with_name("config.json")).get("model_type")
    if kind in _BY_MODEL_TYPE:
        return _BY_MODEL_TYPE[kind]
    if Markup.OPENS in tokens.added and Markup.CLOSES in tokens.added:
        return CHATML
    message = f"{path.parent}: its family is not known by its name; give one: {_known_families()}"
    raise ConfigError(message)


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    unreadable = (OSError, ValueError, RecursionError)
    with wrap_errors(ConfigError, f"{path}: expected a JSON object", unreadable):
        config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return config


def _known_families() -> str:
    return "known: " + ", ".join([CHATML, *FAMILIES])
