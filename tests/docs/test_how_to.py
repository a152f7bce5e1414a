"""How-to pages: what they name exists, and what they tell one to type does what they say."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from itertools import takewhile
from pathlib import Path
from textwrap import dedent

import pytest
from tests.waiting import PATIENCE_S

from gyre.cli import status
from gyre.cli.main import main
from gyre.testing.processes import EngineProcess
from gyre.testing.tokenizer import write_tokenizer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHELL = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
ENGINE = "sglang=http://127.0.0.1:30000"
SCRIPT = """
from gyre.testing.script import ScriptedReply, Script, always

def script():
    return Script([always(ScriptedReply(text="I would rather not."))])
"""


def text_of(page):
    return (DOCS / f"{page}.md").read_text()


def commands(page):
    """Shell blocks of a page, those in lists included."""
    return [dedent(block).strip() for block in SHELL.findall(text_of(page))]


def rows(text):
    """Cells of the table rows, heads and rules left out."""
    found = [re.split(r" *\| *", line.strip())[1:-1] for line in text.splitlines() if "|" in line]
    rules = [at for at, cells in enumerate(found) if set("".join(cells)) == {"-"}]
    return [cells for at, cells in enumerate(found) if at not in rules and at + 1 not in rules]


def typed(command, folder, **more):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={**os.environ, "PATH": path, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )


def test_every_panel_of_the_page_has_its_section_and_every_section_its_panel():
    page = ROOT / "src" / "gyre" / "observability" / "dashboard" / "page"
    sources = "\n".join(path.read_text() for path in sorted(page.glob("*.js")))
    titles = re.findall(r'\bid: "\w+",\s+title: "([^"]+)"', sources)
    sections = re.findall(r"^### (.+)$", text_of("dashboard"), re.MULTILINE)

    assert sorted(titles) == sorted(sections)
    assert len(titles) > 10


def test_every_port_has_the_contract_that_its_row_names():
    for what, port, contract, _ in rows(text_of("adapters")):
        name, file = re.findall(r"`([^`]+)`", port)

        assert f"class {name}(Protocol)" in (ROOT / file).read_text(), what
        assert (ROOT / contract.strip("`")).is_file(), what


def test_the_exit_statuses_of_a_run_are_those_of_its_status():
    resume = text_of("faults").partition("## Resume\n")[2].partition("\n### ")[0]
    found = [int(first) for first, *_ in rows(resume) if first.isdigit()]

    assert [one for one in status.ENDS if one != 130] == found


def test_real_engines_are_tried_as_the_page_says():
    page = text_of("engines")
    tried = "".join(
        path.read_text() for path in (ROOT / "tests" / "hardware" / "engines").rglob("*.py")
    )

    for part in ("sglang.launch_server", "vllm", "processed_logprobs"):
        assert part in page
        assert part in tried
    assert "--incremental-streaming-output" in page
    assert "--incremental-streaming-output" not in tried


def test_what_a_cluster_may_complain_of_is_what_it_says():
    found = rows(text_of("cluster").partition("## What may go wrong")[2])
    shown = [re.findall(r"^`([^`]+)`$", seen) for seen, *_ in found]
    parts = [part.strip() for spans in shown for span in spans for part in span.split("...")]
    room = ROOT / "src" / "gyre"
    said = "\n".join(path.read_text() for path in sorted(room.rglob("*.py")))

    assert len(parts) > 6
    assert [] == [one for one in parts if one not in said]


@pytest.mark.slow
def test_a_simulated_run_is_looked_at(tmp_path):
    (shown,) = [one for one in commands("simulator") if "--journal" in one]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = typed(shown, tmp_path)

    assert (0, True) == (done.returncode, "finished" in done.stdout), done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder as pages on engines assume it, and a scripted engine."""
    folder = tmp_path_factory.mktemp("served")
    write_tokenizer(folder / "model")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "examples").symlink_to(ROOT / "examples")
    engine = EngineProcess(
        "sglang",
        script=f"{folder / 'script.py'}:script",
        tokenizer=folder / "model" / "tokenizer.json",
        log=folder / "asks.jsonl",
    )
    with engine:
        yield folder, engine


@pytest.mark.slow
def test_an_engine_that_is_there_already_is_used_for_a_rollout(served):
    folder, engine = served
    (use,) = [one for one in commands("engines") if ENGINE in one]
    done = typed(use.replace(ENGINE, engine.address), folder)

    assert 0 == done.returncode, done.stdout
    assert "4 executions of 2 tasks, 4 with a score" in done.stdout
    sampled = re.findall(r"targets (\d+) of (\d+) sampled tokens", done.stdout)
    assert 4 == len(sampled)
    assert all(targets == tokens != "0" for targets, tokens in sampled)


@pytest.mark.slow
def test_a_program_that_one_starts_oneself_is_recorded(served):
    """What an agent program would ask is asked here, with the variables that it would read."""
    folder, engine = served
    start, opened, closed = commands("harnesses")[-3:]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    proxy = subprocess.Popen(
        ["bash", "-c", f"exec {start.replace(ENGINE, engine.address)} --port 0"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert list(takewhile(lambda line: line != "ready\n", proxy.stdout))
        told = typed(f"{opened}\nenv", folder).stdout
        variables = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
        reply = asked(variables["ANTHROPIC_BASE_URL"], variables["ANTHROPIC_AUTH_TOKEN"])
        done = typed(closed, folder)
    finally:
        proxy.send_signal(signal.SIGTERM)
        proxy.communicate(timeout=PATIENCE_S)

    assert "I would rather not." == reply
    assert (0, True) == (done.returncode, "calls   1 (1 committed)" in done.stdout), done.stdout


def asked(url, key):
    body = {"model": "policy", "max_tokens": 50, "messages": [{"role": "user", "content": "Do."}]}
    request = urllib.request.Request(
        f"{url}/v1/messages",
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)["content"][0]["text"]


def test_the_programs_that_pages_name_can_be_prepared(capsys):
    named = re.findall(r"gyre harness prepare (\w+)$", text_of("harnesses"), re.MULTILINE)

    assert 0 == main(["harness", "list"])
    listed = capsys.readouterr().out
    assert named
    assert [] == [one for one in named if one not in listed]
