"""Plays `gyre rollout` with a real program in a process without a network."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from staging import cut
from staging.scripts import ANSWER, TASK
from staging.stage import SCRIPTS

from gyre.testing.processes import EngineProcess
from gyre.testing.tokenizer import write_tokenizer

LIMIT_S = 1800.0
JUDGE = f'test "$(rev nonce.txt)" = "$(cat {ANSWER})"'


def roll_out(kind: str, folder: Path, *, members: int, nonce: str) -> tuple[int, str]:
    """Exit status and output; leaves the rollout in folder/run."""
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "nonce.txt").write_text(nonce + "\n")
    rule = {"argv": ["sh", "-c", JUDGE], "score": "exit-status"}
    task = {"id": "t", "instruction": f"{TASK}: go", "files": "files", "evaluation": rule}
    (folder / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    command = [*cut.unshared(), sys.executable, __file__, kind, str(folder), str(members)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S)
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    kind, folder, members = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    cut.raise_loopback()
    model = write_tokenizer(folder / "model")
    script, log = f"{SCRIPTS}:{kind}_doer", folder / "asks.jsonl"
    tokenizer = model / "tokenizer.json"
    with EngineProcess("sglang", script=script, tokenizer=tokenizer, log=log) as engine:
        command = [sys.executable, "-m", "gyre", "rollout", str(folder / "tasks.jsonl")]
        command += ["--harness", kind, "--n", members, "--engine", engine.address]
        command += ["--model", str(model), "--run", str(folder / "run"), "--concurrency", "2"]
        for setting in ("model.family=qwen3", "sandbox.kind=local", f"router.idle_s={LIMIT_S}"):
            command += ["--set", setting]
        return subprocess.run(command, timeout=LIMIT_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
