"""What a test asks the stage to play, and what it gets back; both travel as JSON."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from staging.cut import unshared
from staging.relay import RelayFault, Seen

STAGE = Path(__file__).with_name("stage.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One run of one program against one script."""

    program: str
    """A name of staging/program.py."""
    script: str
    """A function of staging/scripts.py."""
    task: str
    nonce: str
    """Written to nonce.txt in the program's working folder; no script knows it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to what the program needs."""
    options: Mapping[str, int | float | str] = field(default_factory=dict)
    """How long a conversation the program is told that it may have."""
    proxy: tuple[str, ...] = ()
    """More arguments of `gyre proxy`."""
    faults: tuple[RelayFault, ...] = ()
    kill_in_calls: tuple[int, ...] = ()
    """The proxy is killed while it works on these calls, and started again."""
    limit_s: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything a run left behind, but what is in its folder."""

    pid: int
    """Also the session of every process it started."""
    exe: str
    """What the kernel says the program's process ran."""
    returncode: int
    stdout: str
    stderr: str
    seen: list[Seen]
    interfaces: list[str]
    routes: list[str]
    metrics: str
    proxy_pids: list[int]
    """One, or two when it was killed."""
    proxy_status: int
    """Exit status of the last one, told to end."""
    seconds: float


def play(scene: Scene, folder: Path) -> Outcome:
    """The outcome of a scene, played in `folder` by a process that has no network."""
    folder.mkdir(parents=True)
    (folder / "scene.json").write_bytes(msgspec.json.encode(scene))
    command = [*unshared(), sys.executable, str(STAGE), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scene.limit_s + 60)
    if done.returncode != 0:
        message = f"the stage ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        raise RuntimeError(message)
    return msgspec.json.decode((folder / "outcome.json").read_bytes(), type=Outcome)
