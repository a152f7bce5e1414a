"""A process of its own, perhaps another user's, that runs a script in a local sandbox.

    python elsewhere.py FOLDER SCRIPT PROCESSES LAUNCHER < FILE

LAUNCHER is `own`, or the folder of the libraries that FILE, a bubblewrap, needs. It prints the
first process of the sandbox, then its levels, then the status of the script, each on a line.
"""

import asyncio
import sys
from pathlib import Path

from gyre.sandboxes.local import launch
from gyre.sandboxes.local.launch import Launcher
from gyre.sandboxes.local.sandbox import LocalSandbox, SandboxLayout
from gyre.sandboxes.proxy_relay import Upstream
from gyre.types.tasks import Command, Limits


async def main(folder: Path, script: str, processes: str, launcher: Launcher) -> None:
    place = SandboxLayout(folder=folder / "place", home=folder / "home")
    most = Limits(memory_bytes=2**28, disk_bytes=2**26, processes=int(processes))

    def proxy():
        url = (folder / "proxy").read_text()
        return "127.0.0.1", int(url)

    sandbox = LocalSandbox("elsewhere", place, most=most, proxy=Upstream(proxy), launcher=launcher)
    workspace = folder / "workspace"
    workspace.mkdir()
    await sandbox.prepare(str(workspace))
    command = Command(argv=("sh", "-c", script))
    await sandbox.start(command, output=str(folder / "output"), most_bytes=2**16)
    print(sandbox.init, *sandbox.levels, sep="\n", flush=True)
    print("status", await sandbox.wait(), flush=True)
    await sandbox.kill()


if __name__ == "__main__":
    where, what, most_processes, chosen = sys.argv[1:]
    found = launch.own()
    if chosen != "own":
        data = sys.stdin.buffer.read()
        found = Launcher(argv=("bwrap",), file=data, libraries=chosen or None)
    asyncio.run(main(Path(where), what, most_processes, found))
