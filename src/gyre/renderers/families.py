"""Model families of the `renderers` package, and the package itself.

Its HTTP client imports `openai` and `httpx`, which take longer than all else that a proxy imports.
Nothing here calls that client, so that a module with its two errors stands in for it while the
package is imported, unless the package has been imported already.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

from gyre.renderers.tokenizer import PackageTokenizer
from gyre.types.errors import ConfigError

PACKAGE, CLIENT = "renderers", "renderers.client"
ERRORS = ("MalformedGenerateResponseError", "OverlongPromptError")
"""What the package itself takes from its client."""


@contextmanager
def _without_its_client() -> Iterator[None]:
    if PACKAGE in sys.modules:
        yield
        return
    stand_in = ModuleType(CLIENT)
    for name in ERRORS:
        setattr(stand_in, name, type(name, (Exception,), {}))
    sys.modules[CLIENT] = stand_in
    try:
        yield
    finally:
        del sys.modules[CLIENT]


with _without_its_client():
    from renderers.base import (
        MODEL_RENDERER_MAP,
        ParsedToolCall,
        ToolCallParseStatus,
        create_renderer,
    )
    from renderers.configs import config_from_name

__all__ = [
    "MODEL_RENDERER_MAP",
    "ParsedToolCall",
    "ToolCallParseStatus",
    "config_from_name",
    "create_renderer",
]


Thinking = Literal["all", "tool_cycle", "template"]
"""How long earlier thinking stays: always, until the next user turn, as the template says (T09)."""

HARMONY_DATE = "2025-01-01"
"""The date in gpt-oss's prompts: today's would change tokens at midnight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Properties of one model family's chat template that the renderer depends on."""

    keeps: tuple[str, bool] | None = None
    """The template's own switch for earlier thinking, and its value that keeps it."""
    thinks: str | None = None
    """The template's own switch for thinking at all."""
    system_first: bool = False
    """A later system message is refused or lost, so it is said by the user instead (M14)."""
    bare_arguments: bool = False
    """Arguments are written without quotes, so only text says exactly what is meant (T13, T19)."""
    tagged_words: bool = False
    """The template puts words of a tool's schema between brackets of its own."""
    stop_opens: bool = False
    """The token that ends a reply opens the next turn, so it is never kept with the reply (T05)."""
    one_call: bool = False
    """The template has room for one tool call in an assistant message."""
    sorts_results: bool = False
    """Given ids, the template puts tool results in the order of their calls, not as sent (T17)."""
    names_in_ids: bool = False
    """A call's id is where its function is named, so ids of another form are replaced."""
    own_encoder: bool = False
    """Text goes through the family's own encoder, which takes no special token from it."""


_QWEN35 = Family(thinks="enable_thinking", system_first=True, bare_arguments=True)
_QWEN36 = replace(_QWEN35, keeps=("preserve_thinking", True))
_GLM = Family(thinks="enable_thinking", bare_arguments=True, stop_opens=True)
_GLM5 = replace(_GLM, keeps=("clear_thinking", False))
_NEMOTRON = Family(
    thinks="enable_thinking",
    keeps=("truncate_history_thinking", False),
    system_first=True,
    bare_arguments=True,
    tagged_words=True,
)

FAMILIES: Mapping[str, Family] = {
    "qwen3": Family(thinks="enable_thinking"),
    "prime-qwen3": Family(bare_arguments=True, tagged_words=True),
    "qwen3.5": _QWEN35,
    "qwen3.6": _QWEN36,
    "qwen3.8": _QWEN36,
    "qwen3-vl": Family(system_first=True),
    "glm-4.5": _GLM,
    "glm-5": _GLM5,
    "glm-5.1": _GLM5,
    "glm-5.3": Family(
        keeps=("clear_thinking", False), bare_arguments=True, stop_opens=True, sorts_results=True
    ),
    "kimi-k2": Family(names_in_ids=True),
    "kimi-k2.5": Family(thinks="thinking", names_in_ids=True),
    "deepseek-v3": Family(),
    "deepseek-r1": Family(),
    "gpt-oss": Family(keeps=("auto_drop_analysis", False), system_first=True, own_encoder=True),
    "llama-3": Family(one_call=True),
    "minimax-m2": Family(system_first=True, bare_arguments=True),
    "nemotron-3": _NEMOTRON,
    "nemotron-3-ultra": _NEMOTRON,
    "nemotron-3.5": _NEMOTRON,
}
"""Families that keep the contract. Left out of the package's: gemma4 and inkling, which are made
for media; deepseek-v4 and hy3, which need character offsets to tell owners; the lagunas, whose
bridge leaves out the newline after a stop (T04)."""


def settings_of(
    name: str, *, thinking: Thinking, enable_thinking: bool | None
) -> dict[str, str | bool]:
    """The family's own settings that say the same; raises ConfigError where it has none."""
    family = FAMILIES[name]
    settings: dict[str, str | bool] = {}
    if thinking != "template":
        settings["thinking_retention"] = thinking
        if family.keeps is not None:
            switch, keeping = family.keeps
            settings[switch] = keeping if thinking == "all" else not keeping
    if enable_thinking is not None:
        if family.thinks is None:
            raise ConfigError(f"enable_thinking: {name} has no such setting; leave it out")
        settings[family.thinks] = enable_thinking
    if name == "gpt-oss":
        settings["conversation_start_date"] = HARMONY_DATE
    return settings


def package_renderer(
    name: str, tokens: PackageTokenizer, settings: Mapping[str, str | bool]
) -> Any:
    """The package's renderer; raises ConfigError when tokenizer and family do not fit."""
    try:
        return create_renderer(tokens, type(config_from_name(name))(**settings))
    except (AssertionError, ValueError) as error:
        message = f"{tokens.name_or_path}: no tokenizer of the family {name}: {error}"
        raise ConfigError(message) from error
    except RuntimeError as error:
        # Only openai_harmony raises this here, when it cannot get its vocabulary.
        raise ConfigError(
            f"{tokens.name_or_path}: gpt-oss is encoded by openai_harmony, which needs the file "
            f"o200k_base.tiktoken; set TIKTOKEN_ENCODINGS_BASE to the folder that holds it: {error}"
        ) from error


def changed_settings(config: Any, name: str) -> list[str]:
    """Settings in force that are not the family's defaults, beside how long thinking stays."""
    family = FAMILIES[name]
    implied = {"thinking_retention", family.keeps[0] if family.keeps is not None else ""}
    return [
        f"{'enable_thinking' if field == family.thinks else field}={str(value).lower()}"
        for field, described in type(config).model_fields.items()
        if field not in implied and (value := getattr(config, field)) != described.default
    ]
