"""Secrets of a real rollout: who has them while it runs, and what its folder says afterwards."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.security import probing_agent
from tests.waiting import PATIENCE_S, wait_until

from gyre.storage.call_log import logs, read
from gyre.testing.emulated_cell import workload, write_tasks

pytestmark = pytest.mark.slow

KEY = re.compile(rb"gyre-[A-Za-z0-9_-]{43}")
JUDGE_KEY = b"key-of-a-judge-that-nobody-else-needs"


@dataclass
class Process:
    """One process as everybody of its user sees it."""

    pid: int
    arguments: bytes
    environment: bytes


@dataclass
class Looked:
    """What a rollout was like while its agent waited, and its folder afterwards."""

    folder: Path
    given: dict
    processes: list[Process]
    listening: set[str]


def family(root):
    """A process and all that descend from it, or were born of its nursery."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, before = {root}, 0
    while before != len(found):
        before = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def processes(pids):
    for pid in pids:
        try:
            proc = Path(f"/proc/{pid}")
            yield Process(pid, (proc / "cmdline").read_bytes(), (proc / "environ").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue


def listening(pids):
    """Addresses, in the kernel's own spelling, on which these processes take connections."""
    sockets = set()
    for pid in pids:
        # Processes, and what they have open, may be gone by now.
        with suppress(FileNotFoundError, ProcessLookupError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    sockets.add(str(fd.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.fixture(scope="module")
def looked(staged, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rest")
    tasks = write_tasks(folder / "tasks.jsonl", workload(tasks=1, members=2, seed=1, mean_s=0.1))
    command = [sys.executable, "-m", "gyre", "rollout", str(tasks), "--model", str(staged.model)]
    command += ["--engine", staged.engine().address, "--run", str(folder / "run"), "--n", "1"]
    command += ["--set", "sandbox.kind=process"]
    agent = [sys.executable, "-S", "-E", probing_agent.__file__, str(folder)]
    with subprocess.Popen(
        [*command, "--", *agent],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"GYRE_JUDGE_KEY": JUDGE_KEY.decode()},
    ) as process:
        try:
            given = folder / "given.json"
            wait_until(lambda: given.exists() or process.poll() is not None, "the agent")
            assert given.exists(), "the rollout ended without its agent"
            pids = family(process.pid)
            found = list(processes(pids)), listening(pids)
        finally:
            (folder / "go").touch()
        process.wait(PATIENCE_S)
    given = json.loads((folder / "given.json").read_text())
    return Looked(folder / "run", given, *found)


def tokens(folder):
    found = [path.read_bytes().strip() for path in folder.rglob("*.token")]
    assert found
    assert all(len(one) >= 43 for one in found)
    return found


def test_the_agent_was_there_with_its_key(looked):
    """Without this the tests below would look at nothing."""
    assert 200 == looked.given["status"]
    assert KEY.fullmatch(looked.given["environment"]["OPENAI_API_KEY"].encode())
    assert looked.given["pid"] in {one.pid for one in looked.processes}
    assert len(looked.processes) >= 5


def test_no_argument_of_any_process_is_a_secret(looked):
    """Arguments are read by every user of the machine."""
    secrets = tokens(looked.folder)

    assert [] == [
        one.arguments
        for one in looked.processes
        if KEY.search(one.arguments) or any(secret in one.arguments for secret in secrets)
    ]


def test_only_the_agent_has_its_key_and_nobody_the_tokens_in_the_environment(looked):
    secrets = tokens(looked.folder)
    with_key = [one.pid for one in looked.processes if KEY.search(one.environment)]

    assert [looked.given["pid"]] == with_key
    assert [] == [
        one.arguments
        for one in looked.processes
        if any(secret in one.environment for secret in secrets)
    ]


def test_an_agent_is_given_its_own_key_and_no_other_secret(looked):
    said = json.dumps(looked.given["environment"]).encode()

    assert 1 == len(set(KEY.findall(said)))
    assert JUDGE_KEY not in said
    assert not any(secret in said for secret in tokens(looked.folder))


def test_everything_listens_on_this_machine_alone(looked):
    """127.0.0.1, as the kernel writes it."""
    assert {"0100007F"} == looked.listening


def test_no_file_of_a_run_holds_a_key_and_only_token_files_a_token(looked):
    """Call logs hold a hash; logs, journals, plans and outcomes nothing at all."""
    secrets = tokens(looked.folder)
    files = [path for path in looked.folder.rglob("*") if path.is_file()]
    telling = [
        path.name
        for path in files
        if KEY.search(data := path.read_bytes())
        or JUDGE_KEY in data
        or (path.suffix != ".token" and any(secret in data for secret in secrets))
    ]

    assert [] == telling
    assert "CallClosed" in [type(one).__name__ for one in read(next(logs(looked.folder))).records]


def test_prompts_and_tokens_are_for_their_owner_alone(looked):
    """Whatever the umask: folders that hold prompts let nobody else in."""
    modes = {
        path.relative_to(looked.folder).parts[0]: path.stat().st_mode & 0o077
        for path in (looked.folder, looked.folder / "executions", *looked.folder.glob("*.token"))
        if path != looked.folder
    }

    assert 0 == looked.folder.stat().st_mode & 0o077
    assert {0} == set(modes.values())
    for attempt in (looked.folder / "attempts").iterdir():
        assert 0 == attempt.stat().st_mode & 0o077
