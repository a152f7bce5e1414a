"""Plays one live run in a process without a network, and watches its processes meanwhile."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from staging import cut
from staging.live import ENDED, Tour, Toured, Witnessed
from staging.live_script import ERRANDS, FOLDER, MEMBERS, SEEN, begun, middle, shared
from staging.program import argv

from gyre.journal.journal import path_of, read
from gyre.rollout.main import LOG_FILE
from gyre.scheduler.messages import CellTraining

LOOK_S = 0.2
TICKS_AT = 19
"""Where the start of a process stands among what follows its name in /proc/PID/stat."""


MOVED = (0, 1)
"""Cells whose calls must have moved before replies go on."""


class Witness:
    """Notes every cell and every harness of a run, and the proxy's counts.

    No program gets its first reply before it was seen, and none is judged before the proxy was
    asked once more, so that nothing is missed however late somebody looks.
    """

    def __init__(self, folder: Path, tour: Tour) -> None:
        self._run = folder / "run"
        self._released = folder / "released"
        self._seen = folder / "seen"
        self._ended = folder / ENDED
        for one in (self._released, self._seen, self._ended):
            one.mkdir()
        self._held = tour.held
        self._num_steps: int = tour.tables["schedule"]["steps_per_burst"]
        """Of a burst."""
        self._program = str(Path(argv(tour.program)[0]).resolve())
        self._num_bursts = 0
        self.harnesses: dict[str, set[Witnessed]] = {}
        self.cells: dict[str, set[Witnessed]] = {}
        self.metrics = ""

    async def watch(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                self.look()
                self._release()
                await self._ask(session)
                await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        supervisors: dict[int, str] = {}
        found = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
        for pid in found:
            log = Path(_link(pid, "fd/2"))
            if log.parent == self._run / "logs" and log.stem.startswith(("cell-", "engine-")):
                self._note(self.cells, log.stem, pid)
            elif log.name == LOG_FILE and log.is_relative_to(self._run):
                supervisors[pid] = log.parent.name
        for pid in found:
            _, parent = _stat(pid)
            if parent in supervisors:
                self._note(self.harnesses, supervisors[parent], pid)

    def _release(self) -> None:
        """Replies of a burst go on once both cells have entered training in it.

        What they train ends once all that moves meanwhile has begun, and is trained once both of
        them are there to share it.
        """
        if not self._held or not path_of(self._run).exists():
            return
        for group in range(0, self._held * (self._num_bursts + 1), 2):
            asked = self._released.glob(begun(f"g{group + 1:05d}-*"))
            if len(list(asked)) == MEMBERS * ERRANDS:
                (self._released / middle(group + 1)).touch()
        entered = Counter(
            entry.event.cell
            for entry in read(path_of(self._run), kinds=(CellTraining,)).entries
            if isinstance(entry.event, CellTraining)
        )
        while self._num_bursts < min(entered[cell] for cell in MOVED):
            for group in range(self._held):
                (self._released / str(self._num_bursts * self._held + group)).touch()
            for step in range(self._num_steps):
                (self._released / shared(self._num_bursts * self._num_steps + step)).touch()
            self._num_bursts += 1

    def _note(self, books: dict[str, set[Witnessed]], name: str, pid: int) -> None:
        started, _ = _stat(pid)
        if (exe := _link(pid, "exe")) and started:
            books.setdefault(name, set()).add(Witnessed(pid=pid, started=started, exe=exe))
            if exe == self._program:
                (self._seen / name).touch()

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        """The proxy is asked when it is there; then those go on who have ended before."""
        ended = list(self._ended.iterdir())
        try:
            url = (self._run / "proxy.url").read_text().strip()
            async with session.get(f"{url}/metrics") as answer:
                self.metrics = await answer.text()
        except (OSError, aiohttp.ClientError):
            return
        for one in ended:
            one.unlink()


def _link(pid: int, name: str) -> str:
    """Where a link of a process leads; nothing once it has ended."""
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink())
    except OSError:
        return ""


def _stat(pid: int) -> tuple[int, int]:
    """When it started, and its parent; zeros once it has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return int(after_name[TICKS_AT]), int(after_name[1])


async def perform(folder: Path, tour: Tour) -> Toured:
    """The run from beginning to end."""
    witness = Witness(folder, tour)
    harness = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (harness, os.environ.get("PYTHONPATH"))))
    # Cells find their trainer there.
    waiting = {SEEN: str(folder / "seen"), "PYTHONPATH": path}
    if tour.held:
        waiting[FOLDER] = str(folder / "released")
    began = time.monotonic()
    with (folder / "train.out").open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("gyre")), "train", str(folder / "run.toml")),
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | waiting,
        )
    ended = asyncio.create_task(child.wait())
    watching = asyncio.create_task(witness.watch())
    try:
        async with asyncio.timeout(tour.limit_s):
            await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            returncode = await ended
    finally:
        watching.cancel()
        if child.returncode is None:
            # It ends all that it started, agent programs too.
            os.kill(child.pid, signal.SIGTERM)
            await child.wait()
    return Toured(
        returncode=returncode,
        stdout=(folder / "train.out").read_text(errors="replace"),
        seconds=time.monotonic() - began,
        interfaces=cut.interfaces(),
        routes=cut.routes(),
        metrics=witness.metrics,
        harnesses={name: list(seen) for name, seen in witness.harnesses.items()},
        cells={name: list(seen) for name, seen in witness.cells.items()},
    )


def main() -> None:
    folder = Path(sys.argv[1])
    tour = msgspec.json.decode((folder / "tour.json").read_bytes(), type=Tour)
    cut.raise_loopback()
    toured = asyncio.run(perform(folder, tour))
    (folder / "toured.json").write_bytes(msgspec.json.encode(toured))


if __name__ == "__main__":
    main()
