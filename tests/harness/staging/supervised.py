"""Plays one supervised execution of a real program in a process without a network."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from staging import cut
from staging.scripts import ANSWER
from staging.stage import EXECUTION, SCRIPTS, ProxyProcess

from gyre.config.run_config import HarnessConfig
from gyre.harnesses.program import ContextWindow
from gyre.harnesses.registry import open_harness
from gyre.rollout.main import LOG_FILE
from gyre.rollout.spec import ExecutionSpec, write_order
from gyre.testing.processes import EngineProcess
from gyre.testing.tokenizer import write_tokenizer
from gyre.types.tasks import EvaluationRule, SandboxSpec, Task

LIMIT_S = 1800.0
JUDGE = f'test "$(rev nonce.txt)" = "$(cat {ANSWER})"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One execution of a task that asks for the nonce reversed."""

    kind: str
    """As a run file names the harness."""
    sandbox: Literal["process", "local"]
    instruction: str
    nonce: str


def play_supervised(errand: Errand, folder: Path) -> None:
    """Leaves the supervisor's files in folder/execution and the call log in folder/run."""
    folder.mkdir(parents=True)
    (folder / "errand.json").write_bytes(msgspec.json.encode(errand))
    command = [*cut.unshared(), sys.executable, __file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S)
    if done.returncode != 0:
        message = f"the stage ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        raise RuntimeError(message)


async def perform(folder: Path, errand: Errand) -> None:
    assert (["lo"], []) == (cut.interfaces(), cut.routes())
    files = folder / "files"
    files.mkdir()
    (files / "nonce.txt").write_text(errand.nonce + "\n")
    tokenizer = write_tokenizer(folder / "model") / "tokenizer.json"
    script = f"{SCRIPTS}:{errand.kind}_doer"
    log = folder / "asks.jsonl"
    with EngineProcess("sglang", script=script, tokenizer=tokenizer, log=log) as engine:
        proxy = ProxyProcess(folder, engine.address, ())
        await proxy.start()
        try:
            order = _order(errand, files, f"http://127.0.0.1:{proxy.port}/exec/{EXECUTION}")
            path = write_order(folder / "execution", order)
            await asyncio.to_thread(_supervise, path, proxy.key)
        finally:
            await proxy.stop()


def _supervise(path: Path, key: str) -> None:
    with (path.parent / LOG_FILE).open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", "gyre.rollout.main", str(path)],
            input=msgspec.json.encode({"key": key}),
            stdout=log,
            stderr=log,
            timeout=LIMIT_S,
            check=False,
        )


def _order(errand: Errand, files: Path, url: str) -> ExecutionSpec:
    window = ContextWindow.of(context_tokens=131_072, reply_tokens=8192)
    harness = open_harness(HarnessConfig(kind=errand.kind), window)
    judge = EvaluationRule(argv=("sh", "-c", JUDGE), score="exit-status")
    task = Task(id="t", instruction=errand.instruction, files=str(files), evaluation=judge)
    return ExecutionSpec(
        execution=EXECUTION,
        task=task,
        url=url,
        harness=harness.argv,
        variables=harness.variables,
        home=harness.home,
        layers=harness.layers,
        sandbox=SandboxSpec(kind=errand.sandbox),
        agent_s=LIMIT_S / 2,
        overall_s=LIMIT_S,
    )


def main() -> None:
    folder = Path(sys.argv[1])
    errand = msgspec.json.decode((folder / "errand.json").read_bytes(), type=Errand)
    cut.raise_loopback()
    asyncio.run(perform(folder, errand))


if __name__ == "__main__":
    main()
