"""An agent program that costs little: calls and pauses as its instruction says, one after another.

    python3 -S -E light_agent.py '[{"reply_s": 0.35, "tool_s": 0.1}, {"reply_s": 0.2}]'

It speaks OpenAI Chat Completions to OPENAI_BASE_URL with OPENAI_API_KEY. The instruction is a list
of turns, or `{"members": [turns, ...]}`: the number at the end of the execution's name, which is in
the address (/exec/NAME), says which of them is its own. A turn is a call whose reply takes
`reply_s` and has `words`, or at most `tokens`, if they are given, and then a tool that takes
`tool_s` and answers with `tool_words`. Each reply becomes a line of replies.txt in the working
directory. It ends with 0, with 1 if a call failed, and with 2 if its instruction cannot be done.
"""

import json
import os
import re
import socket
import sys
import time
from zlib import crc32

REPLIES = "replies.txt"
MODEL = "policy"
PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0, 5.0)
"""Before each further attempt at a call."""
CALL_S = 3600.0
"""How long a reply may take; the proxy holds a call while no engine is there."""
RETRIED = (408, 409, 429, 500, 502, 503, 504, 529)
TURN_KEYS = {"reply_s", "words", "tokens", "tool_s", "tool_words"}


class CallRefused(Exception):
    """A call failed for good."""


class UnusableTask(Exception):
    """Raised when the instruction or the environment says nothing that can be done."""


class Address:
    """Where calls go, taken apart."""

    def __init__(self, url: str) -> None:
        found = re.fullmatch(r"http://([^/:\[\]]+|\[[^\]]+\])(?::([0-9]+))?(/.*)?", url)
        if found is None:
            raise UnusableTask(f"OPENAI_BASE_URL: expected http://HOST:PORT/PATH, found {url!r}")
        self.host = found[1].strip("[]")
        self.port = int(found[2] or 80)
        self.path = (found[3] or "").rstrip("/")

    @property
    def execution(self) -> str:
        """Its name; empty where the address holds none."""
        found = re.search(r"/exec/([^/]+)", self.path)
        return found[1] if found else ""


def member_of(execution: str, count: int) -> int:
    """Which of so many members an execution is; one without a number at its end, any of them."""
    found = re.search(r"([0-9]+)$", execution)
    return (int(found[1]) if found else crc32(execution.encode())) % count


def turns_of(instruction: str, execution: str) -> "list[dict[str, float]]":
    """The turns of this execution; raises Unusable that says which is wrong."""
    try:
        said = json.loads(instruction)
    except ValueError as error:
        raise UnusableTask(f"instruction: expected JSON: {error}") from error
    if isinstance(said, dict) and isinstance(said.get("members"), list) and said["members"]:
        said = said["members"][member_of(execution, len(said["members"]))]
    if not isinstance(said, list):
        raise UnusableTask('instruction: expected a list of turns, or {"members": [turns, ...]}')
    for index, turn in enumerate(said):
        if not isinstance(turn, dict) or not set(turn) <= TURN_KEYS:
            raise UnusableTask(
                f"turn {index}: expected an object of {', '.join(sorted(TURN_KEYS))}"
            )
        for key, value in turn.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value < float("inf"):
                raise UnusableTask(
                    f"turn {index}: {key}: expected a number of 0 or more, found {value!r}"
                )
    return said


def asked(turn: "dict[str, float]") -> str:
    """What tells an emulated engine how long its reply takes."""
    said = f'{{"reply_s": {turn.get("reply_s", 0.0):f}'
    return f'{said}, "words": {int(turn["words"])}}}' if "words" in turn else f"{said}}}"


def call(
    address: Address,
    key: str,
    messages: "list[dict[str, str]]",
    pauses_s: "tuple[float, ...]" = PAUSES_S,
    *,
    max_tokens: "int | None" = None,
) -> str:
    """The reply to the conversation; tried again as clients do, and Refused after that."""
    length = {} if max_tokens is None else {"max_tokens": max_tokens}
    body = json.dumps({"model": MODEL, "messages": messages, **length}).encode()
    failed = ""
    for pause_s in (0.0, *pauses_s):
        time.sleep(pause_s)
        try:
            status, answer = post(address, key, body)
        except (OSError, ValueError) as error:
            failed = f"{type(error).__name__}: {error}"
            continue
        if status == 200:
            return reply_in(answer)
        failed = f"{status}: {answer[:500].decode(errors='replace')}"
        if status not in RETRIED:
            break
    raise CallRefused(failed)


def post(address: Address, key: str, body: bytes) -> "tuple[int, bytes]":
    """Status and body; raises OSError or ValueError for what is not a whole answer."""
    head = (
        f"POST {address.path}/chat/completions HTTP/1.0\r\n"
        f"host: {address.host}:{address.port}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.host, address.port), timeout=CALL_S) as connection:
        connection.sendall(head.encode() + body)
        pieces = []
        # Of version 1.0 an answer comes in one piece, and ends with the connection.
        while piece := connection.recv(2**16):
            pieces.append(piece)
    header, found, answer = b"".join(pieces).partition(b"\r\n\r\n")
    lines = header.decode("latin-1").split("\r\n")
    if not found or len(lines[0].split()) < 2:
        raise ValueError("the connection ended before the answer")
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length" and int(value) != len(answer):
            raise ValueError(f"{len(answer)} of {int(value)} bytes came")
    return int(lines[0].split()[1]), answer


def reply_in(answer: bytes) -> str:
    try:
        return json.loads(answer)["choices"][0]["message"]["content"] or ""
    except (ValueError, LookupError, TypeError) as error:
        raise CallRefused(f"expected a completion, found {answer[:500]!r}") from error


def work(turns: "list[dict[str, float]]", address: Address, key: str) -> None:
    """All turns, with the replies in the file as they come."""
    messages: list[dict[str, str]] = []
    tool_result = ""
    with open(REPLIES, "a", encoding="utf-8") as replies:  # noqa: PTH123
        for turn in turns:
            messages.append({"role": "user", "content": f"{tool_result}{asked(turn)}"})
            most = int(turn["tokens"]) if "tokens" in turn else None
            reply = call(address, key, messages, max_tokens=most)
            messages.append({"role": "assistant", "content": reply})
            replies.write(reply.replace("\n", " ") + "\n")
            replies.flush()
            time.sleep(turn.get("tool_s", 0.0))
            tool_result = "out " * int(turn.get("tool_words", 0))


def main() -> int:
    try:
        if len(sys.argv) != 2:
            raise UnusableTask("expected one argument, the instruction")
        if "OPENAI_BASE_URL" not in os.environ or "OPENAI_API_KEY" not in os.environ:
            raise UnusableTask("expected OPENAI_BASE_URL and OPENAI_API_KEY in the environment")
        address = Address(os.environ["OPENAI_BASE_URL"])
        work(turns_of(sys.argv[1], address.execution), address, os.environ["OPENAI_API_KEY"])
    except (UnusableTask, CallRefused) as error:
        print(f"light_agent: {error}", file=sys.stderr)
        return 2 if isinstance(error, UnusableTask) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
