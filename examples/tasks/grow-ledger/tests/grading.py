"""Checks against a fixed number, and the part of them that holds, written to reward.json.

What the agent wrote runs in processes of its own, without the variables that lead here; what they
print is compared with what is right, so that no line on the output can stand for a check.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

WORKSPACE = Path.cwd()
RESULTS = Path(os.environ.pop("GYRE_RESULTS", "/logs/verifier"))
os.environ.pop("GYRE_EVALUATION", None)
LIMIT_S = 5
CALLS = """
import importlib, json, os, sys
sys.path.insert(0, os.getcwd())
module, cases = json.load(sys.stdin)
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for name, arguments in cases:
    try:
        found = ["gave", getattr(importlib.import_module(module), name)(*arguments)]
        line = json.dumps(found)
    except Exception as error:
        line = json.dumps(["raised", type(error).__name__])
    print(line, file=out, flush=True)
"""


def text(name):
    """A file of the workspace; nothing where there is none."""
    path = WORKSPACE / name
    if path.is_symlink() or not path.is_file():
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def lines(name):
    return text(name).splitlines()


def run(*argv, stdin=""):
    """Exit status and output of a program in the workspace; nothing if it takes too long."""
    try:
        done = subprocess.run(
            argv, cwd=WORKSPACE, input=stdin, capture_output=True, text=True, timeout=LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None, ""
    return done.returncode, done.stdout


def python(*arguments, stdin=""):
    return run(sys.executable, *arguments, stdin=stdin)


def calls(module, *cases):
    """What the workspace's functions give or raise, call by call, in one process."""
    given = json.dumps([module, cases])
    try:
        done = subprocess.run(
            [sys.executable, "-c", CALLS],
            cwd=WORKSPACE, input=given, capture_output=True, text=True, timeout=LIMIT_S,
        )
        said = done.stdout
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace")
    found = []
    for line in said.splitlines():
        try:
            found.append(tuple(json.loads(line)))
        except (ValueError, TypeError):
            found.append(("said", line))
    return [*found, *[("nothing", None)] * len(cases)][: len(cases)]


def gave(found, *wanted):
    """Which calls gave what they should."""
    return [one == ("gave", value) for one, value in zip(found, wanted, strict=True)]


def grade(checks, keeps=()):
    """The part of the checks that holds; 0 unless everything that worked before still does."""
    kept = sum(map(bool, keeps)) / len(keeps) if keeps else 1.0
    part = sum(map(bool, checks)) / len(checks)
    rewards = {"reward": part if kept == 1.0 else 0.0, "checks": part, "kept": kept}
    RESULTS.mkdir(parents=True, exist_ok=True)
    fresh = RESULTS / "reward.json.new"
    fresh.write_text(json.dumps(rewards) + "\n")
    fresh.replace(RESULTS / "reward.json")
