"""The fixed replies of the mock engine, and the long conversation that callers grow with them."""

import inspect
import json
import tokenize
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NUM_REPLIES = 64
"""Distinct replies; enough that no cache of whole replies is flattered."""

PASSAGE = (
    "reading the failing test shows that the parser drops the last field when a line ends early "
    "so the next step is to open the module that splits the record and see where it stops then "
    "run the same test again with the change in place and compare both outputs before going on"
)
WORDS = PASSAGE.split()

TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{what} Prefer it over longer ways to the same end. " * 4,
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": what},
                    "timeout": {"type": "integer", "description": "Seconds until it is stopped."},
                },
                "required": ["command"],
            },
        },
    }
    for name, what in (
        ("shell", "Runs one command line and returns what it printed."),
        ("read", "Returns some lines of a file."),
        ("edit", "Replaces a passage of a file."),
        ("search", "Finds lines that match an expression."),
        ("list", "Names the files of a folder."),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One reply as text, and the arguments of its tool call where it has one."""

    text: str
    arguments: str | None

    @property
    def sampled(self) -> str:
        """What a ChatML model writes for it, up to the end of the turn."""
        if self.arguments is None:
            return self.text + "<|im_end|>"
        call = f'{{"name": "shell", "arguments": {self.arguments}}}'
        return f"{self.text}\n<tool_call>\n{call}\n</tool_call><|im_end|>"


def said(position: int, *, tools: bool) -> Said:
    """The reply at a position of the cycle; about 64 tokens."""
    index = position % NUM_REPLIES
    turned = WORDS[index % len(WORDS) :] + WORDS[: index % len(WORDS)]
    if not tools:
        return Said(text=f"Note {index}: " + " ".join(turned), arguments=None)
    command = f"python -m pytest -q tests/test_record_{index}.py | tail -n 20"
    return Said(
        text=f"Note {index}: " + " ".join(turned[:24]),
        arguments=json.dumps({"command": command, "timeout": 60}),
    )


def tool_output(start: int, num_chars: int) -> str:
    """Text as a tool would print it: a slice of the standard library's own sources."""
    offset = (start * 7919) % (len(SOURCES) - num_chars)
    return SOURCES[offset : offset + num_chars]


def _sources() -> Iterator[str]:
    for module in (inspect, tokenize, json):
        yield inspect.getsource(module)
    yield inspect.getsource(ArgumentParser)


SOURCES = "\n".join(_sources())
