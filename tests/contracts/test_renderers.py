"""Every renderer keeps the contract: ours, and each family of the package that a test can make."""

from functools import cache

import pytest
from renderers.configs import _CONFIG_BY_NAME
from tests.contracts.renderer import CHECKS, Subject

from gyre.backends.renderers.chatml import ChatML
from gyre.backends.renderers.families import FAMILIES
from gyre.backends.renderers.family import FamilyRenderer
from gyre.backends.renderers.tokens import Tokens
from gyre.testing.tokenizer import CHATML, QWEN3, tokenizer_json

VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<image>")
GLM = (
    "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
KIMI = (
    "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|media_begin|>", "<|media_content|>",
    "<|media_pad|>", "<|media_end|>", "<|endoftext|>",
)  # fmt: skip
LLAMA = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|end_of_text|>", "<|eom_id|>",
)  # fmt: skip
MINIMAX = (
    "]~!b[", "]~b]", "[e~[", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>",
)  # fmt: skip
DEEPSEEK = tuple(
    f"<｜{name}｜>".replace("_", "▁")
    for name in (
        "begin_of_sentence", "end_of_sentence", "User", "Assistant", "tool_calls_begin",
        "tool_calls_end", "tool_call_begin", "tool_call_end", "tool_sep", "tool_outputs_begin",
        "tool_outputs_end", "tool_output_begin", "tool_output_end",
    )
)  # fmt: skip

ADDED = {
    "qwen3": QWEN3,
    "prime-qwen3": QWEN3,
    "qwen3.5": QWEN3 + VISION,
    "qwen3.6": QWEN3 + VISION,
    "qwen3.8": QWEN3 + VISION,
    "qwen3-vl": QWEN3 + VISION,
    "glm-4.5": GLM,
    "glm-5": GLM,
    "glm-5.1": GLM,
    "glm-5.3": GLM,
    "kimi-k2": KIMI,
    "kimi-k2.5": KIMI,
    "deepseek-v3": DEEPSEEK,
    "deepseek-r1": DEEPSEEK,
    "llama-3": LLAMA,
    "minimax-m2": MINIMAX,
    "nemotron-3": QWEN3,
    "nemotron-3-ultra": QWEN3,
    "nemotron-3.5": QWEN3 + VISION,
}
"""The added tokens each family cannot do without."""

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
        tokens = Tokens(tokenizer_json(CHATML if "as text" in name else QWEN3), name=name)
        quiet = "not thinking" in name
        renderer = ChatML(tokens, enable_thinking=False if quiet else None)
        return Subject(renderer=renderer, added=dict(tokens.added), thinks=not quiet)
    tokens = Tokens(tokenizer_json(ADDED[name]), name=name)
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
