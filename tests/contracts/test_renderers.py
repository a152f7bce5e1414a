"""Every renderer keeps the contract: ours, and each family of the package that a test can make."""

from functools import cache

import pytest
from renderers.configs import _CONFIG_BY_NAME
from tests.contracts.families import ADDED, tokens_of
from tests.contracts.renderer import CHECKS, Subject

from gyre.renderers.chatml import ChatML
from gyre.renderers.families import FAMILIES
from gyre.renderers.family_renderer import FamilyRenderer
from gyre.renderers.tokenizer import PackageTokenizer
from gyre.testing.tokenizer import CHATML, QWEN3, tokenizer_json

UNTESTED = {"gpt-oss": "its encoder loads a vocabulary file of its own, which is not at hand"}
LEFT_OUT = {
    "gemma4": "made for media, with a processor from transformers",
    "inkling": "made for media, with a processor from transformers",
    "deepseek-v4": "needs character offsets to tell owners, and cannot bridge two tool results",
    "hy3": "needs character offsets to tell owners, and cannot bridge an empty reply",
    "laguna-xs.2": "its bridge leaves out the newline after a stop (T04)",
    "laguna-m.1": "its bridge leaves out the newline after a stop (T04)",
    "laguna-xs-2.1": "its bridge leaves out the newline after a stop (T04)",
    "laguna-s-2.1": "its bridge leaves out the newline after a stop (T04)",
}

FORGETS_TURNS = {"qwen3", "qwen3.5", "glm-4.5", "minimax-m2", "kimi-k2.5"}
"""Templates that strip the thinking of earlier turns, with no switch against it (T09)."""
FORGETS_CYCLES = {"deepseek-r1"}
"""The template strips all thinking at once."""
NEVER_THINKS = {"kimi-k2", "deepseek-v3", "llama-3", "qwen3-vl"}
SHOWS_NO_TOOLS = {"deepseek-v3", "deepseek-r1"}

OURS = ("chatml", "chatml markup as text", "chatml not thinking")


@cache
def subject(name: str) -> Subject:
    if name in OURS:
        tokens = PackageTokenizer(tokenizer_json(CHATML if "as text" in name else QWEN3), name=name)
        quiet = "not thinking" in name
        renderer = ChatML(tokens, enable_thinking=False if quiet else None)
        return Subject(renderer=renderer, added=dict(tokens.added), thinks=not quiet)
    tokens = tokens_of(name)
    return Subject(
        renderer=FamilyRenderer(name, tokens),
        added=dict(tokens.added),
        keeps_cycles=name not in FORGETS_CYCLES,
        keeps_turns=name not in FORGETS_TURNS | FORGETS_CYCLES,
        shows_tools=name not in SHOWS_NO_TOOLS,
        thinks=name not in NEVER_THINKS,
        speaks_beside_calls=name != "llama-3",
        opens_turns_with_stop=name.startswith("glm"),
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [*OURS, *ADDED])
def test_the_contract_is_kept(name, check):
    check(subject(name))


def test_every_family_is_tested_or_left_out_for_a_reason():
    package = set(_CONFIG_BY_NAME) - {"auto", "default"}

    assert set(FAMILIES) == set(ADDED) | set(UNTESTED)
    assert package == set(FAMILIES) | set(LEFT_OUT)
