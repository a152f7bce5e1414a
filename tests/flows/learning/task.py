"""A task in two calls: find the sideline of a city, ask its timetable, repeat what that said."""

import json
from collections.abc import Generator
from dataclasses import dataclass
from random import Random
from typing import Any

NAME = "time_table"
ARGUMENT = "side_line"
SIDELINES = {"Lisbon": "1", "Vienna": "2", "Athens": "3", "Dublin": "4", "Q":"5","W":"6"}
"""Which sideline goes to which city is told nowhere: only rewards know."""
PARAMETERS = {
    "type": "object",
    "properties": {ARGUMENT: {"type": "string", "enum": list(SIDELINES.values())}},
    "required": [ARGUMENT],
}
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Departures.",
        "parameters": json.dumps(PARAMETERS),
    },
}

Talk = Generator[list[dict[str, Any]], dict[str, Any], float]
"""An agent program: sends conversations, is sent assistant messages, ends with its reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """One query: where to, and the sideline that the timetable will say to change to."""

    first: str
    change: str

    @property
    def request(self) -> str:
        return REQUEST % self.first
REQUEST='Departures {"side_line": "%s"}'
RESULT='{"side_line": "%s"}'


def journeys(rng: Random, count: int) -> list[Journey]:
    """Every city as often as the others, and changes at random, so that neither tells the other."""
    cities = list(SIDELINES.values())
    return [
        Journey(first=cities[number % len(cities)], change=rng.choice(cities))
        for number in range(count)
    ]


def travel(journey: Journey) -> Talk:
    """The harness and its environment: two calls at most, and half the reward for each right one."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": journey.request}]
    first = yield messages
    credit = credited(first, journey.first)
    if credit < 1:
        return credit / 2
    (call,) = first["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": RESULT % journey.change}
    second = yield [*messages, first, result]
    return (credit + credited(second, journey.change)) / 2


def credited(reply: dict[str, Any], sideline: str) -> float:
    """1 for the one right call, and something for a call of the tool that could have been it."""
    calls = reply.get("tool_calls") or []
    if len(calls) != 1 or calls[0]["function"]["name"] != NAME:
        return 0.0
    arguments = json.loads(calls[0]["function"]["arguments"])
    if list(arguments) != [ARGUMENT]:
        return RUNGS[0]
    value = arguments[ARGUMENT]
    if value not in SIDELINES.values():
        return RUNGS[1]
    return 1.0 if value == sideline else RUNGS[2]


RUNGS = (0.1, 0.2, 0.4)
