"""The commands of the README do what it says, with a scripted engine and a stand-in for claude."""

import json
import os
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from gyre.testing.processes import EngineProcess
from gyre.testing.tokenizer import write_tokenizer

ROOT = Path(__file__).parents[2]
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)

SCRIPT = """
from gyre.testing.script import ScriptedReply, Script, always

def script():
    return Script([always(ScriptedReply(text="The test passes now."))])
"""

CLAUDE = f"""#!{sys.executable}
import json, os, sys, urllib.request

assert sys.argv[1] == "-p", sys.argv
request = urllib.request.Request(
    os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
    data=json.dumps({{
        "model": os.environ["ANTHROPIC_MODEL"],
        "max_tokens": 100,
        "messages": [{{"role": "user", "content": sys.argv[2]}}],
    }}).encode(),
    headers={{"authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]}},
)
print(json.load(urllib.request.urlopen(request))["content"][0]["text"])
"""


@pytest.fixture
def place(tmp_path):
    """A working directory as the README assumes it, without the engine."""
    write_tokenizer(tmp_path / "model")
    (tmp_path / "script.py").write_text(SCRIPT)
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLAUDE)
    program.chmod(0o755)
    return tmp_path


def shell_blocks():
    readme = (ROOT / "README.md").read_text()
    return [block for block in SHELL.findall(readme) if not block.startswith("make ")]


def environment(place):
    path = f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")}
    return kept | {"PATH": path}


def test_the_readme_records_inspects_and_exports_a_run(place):
    start, use = shell_blocks()
    engine = EngineProcess(
        "sglang",
        script=f"{place / 'script.py'}:script",
        tokenizer=place / "model" / "tokenizer.json",
        log=place / "asks.jsonl",
    )
    with engine:
        start = start.replace("http://127.0.0.1:30000", engine.url)
        proxy = subprocess.Popen(
            ["bash", "-c", f"exec {start.strip()} --port 0"],
            cwd=place,
            env=environment(place),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            said = list(takewhile(lambda line: line != "ready\n", proxy.stdout))
            used = subprocess.run(
                ["bash", "-euc", use],
                cwd=place,
                env=environment(place),
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
        finally:
            proxy.terminate()
            proxy.communicate(timeout=PATIENCE_S)

    assert (0, "") == (used.returncode, used.stderr)
    assert any("runs/first" in line for line in said)
    assert "The test passes now." in used.stdout
    assert "try-1" in used.stdout
    assert 1 == len(engine.asks())
    (row,) = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]
    assert row["ids"][: len(engine.asks()[0].input_ids)] == engine.asks()[0].input_ids


def test_the_readme_fits_one_screen():
    text = (ROOT / "README.md").read_text()
    measured = text.partition("## Measured")[2].partition("\n## ")[0]

    assert len(text.splitlines()) <= 60
    assert 6 >= len(re.findall(r"^\| \w", measured, re.MULTILINE)) - 1
    assert 1 == len(re.findall(r"!\[", text))
