"""A keeper of a river's log: each gauge of a round is shown to the model, which notes its level.

    python3 -I -S agent.py round-01 "Note the level of each gauge."

It works in the folder it is started in: levels.txt says what the gauges of each round show, and the
model's one tool writes to log.txt, a line a gauge. It speaks OpenAI Chat Completions and knows of
the model what any client knows, OPENAI_BASE_URL and OPENAI_API_KEY. It uses the standard library
alone, and little of it, because hundreds of these are started in a minute.
"""

import http.client
import json
import os
import sys
from pathlib import Path

LEVELS, LOG = Path("levels.txt"), Path("log.txt")
NOTE = {
    "name": "note",
    "description": "Note.",
    "parameters": {
        "type": "object",
        "properties": {"level": {"type": "string"}},
        "required": ["level"],
    },
}
REFUSED = "No level."
NOTHING = "-"
"""Stands in the log for a gauge of which nothing was noted."""
MOST_CALLS = 3
PATIENCE_S = 600


def main(round_name: str, instruction: str) -> None:
    """Every gauge is a conversation of its own, and gets its line."""
    with LOG.open("w") as log:
        for level in levels_of(round_name):
            log.write(noted(instruction, level) + "\n")


def levels_of(round_name: str) -> list[str]:
    """What the gauges of a round show, in the order in which they are passed."""
    for line in LEVELS.read_text().splitlines():
        name, *levels = line.split()
        if name == round_name:
            return levels
    raise SystemExit(f"{LEVELS}: expected a line that begins with {round_name}, found none")


def noted(instruction: str, level: str) -> str:
    """What the model notes of a gauge; what is no level is refused, and it may try again."""
    shown = json.dumps({"level": level}, separators=(",", ":"))
    messages: list[dict] = [{"role": "user", "content": f"{instruction} {shown}"}]
    for _ in range(MOST_CALLS):
        said = ask(messages)
        calls = said.get("tool_calls") or []
        if len(calls) != 1:
            break  # Whoever only talks is done with this gauge.
        found = level_in(calls[0]["function"])
        if found is not None:
            return found
        refusal = {"role": "tool", "tool_call_id": calls[0]["id"], "content": REFUSED}
        messages += [said, refusal]
    return NOTHING


def level_in(function: dict) -> str | None:
    """The digit that a call of the tool notes; None for any other call."""
    try:
        level = json.loads(function["arguments"])["level"]
    except (ValueError, KeyError, TypeError):
        return None
    is_level = isinstance(level, str) and len(level) == 1 and level in "0123456789"
    return level if is_level and function["name"] == NOTE["name"] else None


def ask(messages: list[dict]) -> dict:
    """The model's next message."""
    tools = [{"type": "function", "function": NOTE}]
    body = json.dumps({"model": "policy", "messages": messages, "tools": tools})
    scheme, _, rest = os.environ["OPENAI_BASE_URL"].partition("://")
    if scheme != "http":
        raise SystemExit(f"OPENAI_BASE_URL: expected an http:// address, found {scheme}://")
    host, _, path = rest.partition("/")
    headers = {
        "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "content-type": "application/json",
        "x-gyre-role": "main",  # Without it the same is assumed, and counted as an assumption.
    }
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    connection.request("POST", f"/{path}/chat/completions", body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != http.client.OK:
        raise SystemExit(f"{answer.status} from the model: {text}")
    return json.loads(text)["choices"][0]["message"]


if __name__ == "__main__":
    main(*sys.argv[1:])
