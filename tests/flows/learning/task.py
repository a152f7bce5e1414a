"""A task in two calls: the line that a request names, then the line that the first call names."""

import json
from collections.abc import Generator
from dataclasses import dataclass
from random import Random
from typing import Any

NAME, ARGUMENT = "time_table", "line"
LINES = "1234"
SCHEMA = {
    "type": "object",
    "properties": {ARGUMENT: {"type": "string", "enum": list(LINES)}},
    "required": [ARGUMENT],
}
TOOL = {
    "type": "function",
    "function": {"name": NAME, "description": "Departures.", "parameters": SCHEMA},
}

Talk = Generator[list[dict[str, Any]], dict[str, Any], float]
"""An agent program: sends conversations, is sent assistant messages, ends with its reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """One query: the line to begin with, and the line to change to."""

    first: str
    second: str

    @property
    def request(self) -> str:
        return "Departures " + spelled(self.first)

    @property
    def result(self) -> str:
        """What the environment answers to the first call, if it is right."""
        return spelled(self.second)


def spelled(line: str) -> str:
    """As a call spells it, so that so small a model can look it up."""
    return json.dumps({ARGUMENT: line}, separators=(",", ":"))


def journeys(rng: Random, count: int) -> list[Journey]:
    """Begun with every line equally often; the second is another one, whichever."""
    firsts = [LINES[number % len(LINES)] for number in range(count)]
    return [Journey(first=first, second=rng.choice(LINES.replace(first, ""))) for first in firsts]


def travel(journey: Journey) -> Talk:
    """Harness and environment in one: 0.5 for the first call if it is right, 1 if both are."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": journey.request}]
    said = yield messages
    if line_asked(said) != journey.first:
        return 0.0
    (call,) = said["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": journey.result}
    said = yield [*messages, said, result]
    return 0.5 if line_asked(said) != journey.second else 1.0


def line_asked(said: dict[str, Any]) -> str | None:
    """The argument of the one call that a message makes; None for any other message."""
    calls = said.get("tool_calls") or []
    if len(calls) != 1 or calls[0]["function"]["name"] != NAME:
        return None
    arguments = json.loads(calls[0]["function"]["arguments"])
    return arguments[ARGUMENT] if list(arguments) == [ARGUMENT] else None
