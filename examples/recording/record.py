"""Record two agents through the real proxy, with a scripted engine in the place of a model.

    python examples/recording/record.py FOLDER

FOLDER is made; afterwards it holds the run (call logs), the engine's requests, the agents'
workspaces and the rows that a trainer would see. Look at them with `gyre inspect FOLDER/run`.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import agent_script

from gyre.harnesses.command import environment
from gyre.proxy.admin_client import control
from gyre.testing.tokenizer import write_tokenizer

AGENT = Path(__file__).parents[1] / "agent.py"
COMPACT_AT = 640
"""Tokens at which the agent summarises its history; it passes them once, in its third turn."""
MONTHS = "January February March April May June July August September October November December"
NOTES = {
    "attempt-1": {
        "note-garden.txt": "In {} the garden was dry, and one more bed was dug by the wall.",
        "note-letters.txt": "Write to the school about the {} meeting.",
    },
    "attempt-2": {
        "note-harbour.txt": "In {} two boats came in late, with less fish than the year before.",
        "note-lights.txt": "The {} list of lights is on the table.",
    },
}
"""Two workspaces: a line for each month in the first note, one line in the other."""


def start(stack: ExitStack, *command: str, **variables: str) -> "subprocess.Popen[str]":
    """A process that ends with the stack, however that ends."""
    process = subprocess.Popen(
        [sys.executable, *command], env=os.environ | variables, stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.stdout.close)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def start_engine(stack: ExitStack, model: Path, folder: Path) -> str:
    """The address of an engine that answers by a script."""
    options = ["--script", f"{agent_script.__file__}:script", "--chunk-tokens", "16"]
    options += ["--tokenizer", str(model / "tokenizer.json"), "--log", str(folder / "asks.jsonl")]
    command = ["-m", "gyre.testing.engine_server", "--wire", "sglang", *options]
    engine = start(stack, *command, "--ready-file", "/dev/stdout")
    return f"sglang=http://127.0.0.1:{json.loads(engine.stdout.readline())['port']}"


def start_proxy(stack: ExitStack, model: Path, engine: str, run: Path) -> None:
    """Returns once the proxy takes requests."""
    options = ["--engine", engine, "--port", "0", "--model", str(model), "--family", "qwen3"]
    proxy = start(stack, "-m", "gyre", "proxy", *options, "--run", str(run))
    if "ready" not in (line.strip() for line in proxy.stdout):
        raise SystemExit("the proxy ended before it was ready")


def start_agent(stack: ExitStack, run: Path, workspace: Path) -> "subprocess.Popen[str]":
    """An agent program that reaches its model at an address of its own."""
    workspace.mkdir()
    for number, (name, line) in enumerate(NOTES[workspace.name].items()):
        months = MONTHS.split()[: None if number == 0 else 1]
        (workspace / name).write_text("".join(line.format(month) + "\n" for month in months))
    opened = control(run, "POST", "executions", {"id": workspace.name})
    options = ["--workspace", str(workspace), "--compact-at", str(COMPACT_AT)]
    command = [str(AGENT), agent_script.TASK, *options]
    return start(stack, *command, **environment(opened["url"], opened["key"]), no_proxy="*")


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    run, rows = folder / "run", folder / "rows.jsonl"
    model = write_tokenizer(folder / "model").resolve()
    with ExitStack() as stack:
        start_proxy(stack, model, start_engine(stack, model, folder), run)
        agents = {name: start_agent(stack, run, folder / name) for name in NOTES}
        for name, agent in agents.items():
            for line in agent.stdout:
                print(f"{name}  {line}", end="", flush=True)
            if status := agent.wait():
                raise SystemExit(f"the agent of {name} ended with status {status}")
            control(run, "POST", f"executions/{name}/close", {})
    for command in (
        ["inspect", run, "--leaves"],
        ["export", run, "--format", "jsonl", "--out", rows],
    ):
        print(f"\n$ gyre {' '.join(map(str, command))}", flush=True)
        subprocess.run([sys.executable, "-m", "gyre", *map(str, command)], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        raise SystemExit("usage: record.py FOLDER, a folder that does not exist yet")
    main(Path(sys.argv[1]))
