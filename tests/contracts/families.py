"""Tokenizers that each family of the `renderers` package can work with."""

from functools import cache

from gyre.renderers.tokenizer import PackageTokenizer
from gyre.testing.tokenizer import QWEN3, tokenizer_json

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


@cache
def tokens_of(name: str) -> PackageTokenizer:
    return PackageTokenizer(tokenizer_json(ADDED[name]), name=name)
