"""A small agent with tools, a sub-agent and a memory that it shortens; a script to be recorded.

    eval "$(gyre open RUN NAME)"
    python examples/agent.py "Count the words of each note." --workspace notes

It speaks Anthropic Messages, streaming, with the standard library alone. It knows of the proxy what
any client knows, an address and a key, and says in two headers which of its agents is speaking:
without `x-gyre-role` and `x-gyre-agent` every call would be taken for the main agent's.
"""

import argparse
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

MOST_TURNS = 40
MOST_OUTPUT = 8_000
MAIN = "You work in a folder on a computer. Use the tools, and end with a short report."
READER = (
    "You are a reader: you answer one question about the files in a folder, and change nothing."
)
SUMMARISE = "Summarise the work so far: what was asked, what was found, what is left to do."
GO_ON = "Summary of the work so far, after which you go on:"


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """A tool whose parameters are all strings, each with what it means."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"name": name, "description": description, "input_schema": schema}


RUN = tool("run_command", "Run a shell command in the folder.", command="What to run.")
WRITE = tool("write_file", "Write a file in the folder.", path="Its name.", content="Its text.")
DELEGATE = tool("delegate", "Have a reader answer a question.", question="What to find out.")


@dataclass
class Agent:
    """One conversation with the model, and the tools it may use."""

    workspace: Path
    system: str
    tools: list[dict[str, Any]]
    compact_at: int
    """Tokens of a prompt with its reply after which the history is replaced by a summary."""
    role: str = "main"
    name: str | None = None
    readers: Iterator[int] = field(default_factory=lambda: count(1))
    history: list[dict[str, Any]] = field(default_factory=list)

    def work(self, task: str) -> str:
        """What the model says when it has no more tools to call."""
        self.history = [{"role": "user", "content": [text_block(task)]}]
        for _ in range(MOST_TURNS):
            reply, tokens = self.ask(self.role)
            self.history.append({"role": "assistant", "content": reply})
            uses = [block for block in reply if block["type"] == "tool_use"]
            if not uses:
                return said(reply)
            results = [self.result_of(use) for use in uses]
            self.history.append({"role": "user", "content": results})
            if tokens > self.compact_at:
                self.compact(task)
        return f"gave up after {MOST_TURNS} turns"

    def compact(self, task: str) -> None:
        """A summary takes the place of everything that was said."""
        self.history[-1]["content"].append(text_block(SUMMARISE))
        reply, _ = self.ask(f"{self.role}-summary")
        self.say("has summarised its history")
        kept = f"{task}\n\n{GO_ON}\n{said(reply)}"
        self.history = [{"role": "user", "content": [text_block(kept)]}]

    def ask(self, role: str) -> tuple[list[dict[str, Any]], int]:
        """The blocks of the model's reply, and how many tokens the window now holds."""
        headers = {"x-gyre-role": role} | ({"x-gyre-agent": self.name} if self.name else {})
        model = os.environ.get("ANTHROPIC_MODEL", "policy")
        body = {"model": model, "max_tokens": 4096, "stream": True, "system": self.system}
        return stream(body | {"tools": self.tools, "messages": self.history}, headers)

    def result_of(self, use: dict[str, Any]) -> dict[str, Any]:
        """The result block of one tool call; a mistake is told to the model."""
        self.say(f"{use['name']} {json.dumps(use['input'])}")
        try:
            text = self.call(use["name"], use["input"])
        except (KeyError, OSError, ValueError, subprocess.SubprocessError) as error:
            text = f"{type(error).__name__}: {error}"
        return {"type": "tool_result", "tool_use_id": use["id"], "content": text[:MOST_OUTPUT]}

    def call(self, name: str, given: dict[str, Any]) -> str:
        if name not in [tool["name"] for tool in self.tools]:
            return f"there is no tool {name}"
        if name == "run_command":
            command = ["sh", "-c", f"exec 2>&1 </dev/null; {given['command']}"]
            done = subprocess.run(command, cwd=self.workspace, capture_output=True, timeout=60)
            status = f"(exit status {done.returncode})" if done.returncode else ""
            return done.stdout.decode(errors="replace") + status
        if name == "write_file":
            path = (self.workspace / given["path"]).resolve()
            if not path.is_relative_to(self.workspace.resolve()):
                return f"{given['path']} is outside the folder"
            path.write_text(given["content"])
            return f"wrote {len(given['content'])} characters"
        reader = Agent(
            workspace=self.workspace,
            system=READER,
            tools=[RUN],
            compact_at=self.compact_at,
            role="sub-agent",
            name=f"reader-{next(self.readers)}",
        )
        return reader.work(given["question"])

    def say(self, what: str) -> None:
        print(f"{self.name or 'main'}: {what}", flush=True)


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def said(reply: list[dict[str, Any]]) -> str:
    return "".join(block["text"] for block in reply if block["type"] == "text")


def stream(body: dict[str, Any], headers: dict[str, str]) -> tuple[list[dict[str, Any]], int]:
    """One request; its reply put together from the events of the stream."""
    url, key = os.environ["ANTHROPIC_BASE_URL"], os.environ["ANTHROPIC_AUTH_TOKEN"]
    request = urllib.request.Request(
        f"{url}/v1/messages",
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {key}", "content-type": "application/json", **headers},
    )
    blocks: list[dict[str, Any]] = []
    tokens = 0
    with urllib.request.urlopen(request, timeout=1800) as answer:
        for event in (json.loads(line[5:]) for line in answer if line.startswith(b"data:")):
            match event["type"]:
                case "content_block_start":
                    blocks.append(event["content_block"] | {"written": ""})
                case "content_block_delta":
                    fill(blocks[-1], event["delta"])
                case "message_delta":
                    tokens = sum(event["usage"].values())
                case "error":
                    raise SystemExit(f"the proxy says: {event['error']['message']}")
    return [finished(block) for block in blocks], tokens


def fill(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in ("text", "thinking", "signature"):
        if key in delta:
            block[key] += delta[key]
    block["written"] += delta.get("partial_json", "")


def finished(block: dict[str, Any]) -> dict[str, Any]:
    written = block.pop("written")
    if block["type"] == "tool_use":
        try:
            block["input"] = json.loads(written)
        except ValueError:
            block["input"] = {}
    return block


def main() -> None:
    parser = argparse.ArgumentParser(description="A small agent.")
    parser.add_argument("task")
    parser.add_argument("--workspace", type=Path, default=Path())
    parser.add_argument("--compact-at", type=int, default=100_000, metavar="TOKENS")
    args = parser.parse_args()
    tools = [RUN, WRITE, DELEGATE]
    agent = Agent(workspace=args.workspace, system=MAIN, tools=tools, compact_at=args.compact_at)
    try:
        agent.say(agent.work(args.task))
    except urllib.error.HTTPError as error:
        raise SystemExit(f"the proxy answers {error.code}: {error.read().decode()}") from error


if __name__ == "__main__":
    main()
