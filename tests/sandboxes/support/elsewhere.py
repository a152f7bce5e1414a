"""A process of its own, perhaps another user's, that runs a script in a local sandbox.

    python elsewhere.py FOLDER SCRIPT PROCESSES LIBRARIES < FILE

LIBRARIES is the folder of those that FILE, a bubblewrap, needs. It prints the first process of
the sandbox, then its levels, then the status of the script, each on a line.
"""

import asyncio
import sys
from pathlib import Path

from gyre.sandboxes.local.launch import Bubblewrap
from gyre.sandboxes.local.sandbox import LocalSandbox, SandboxLayout
from gyre.sandboxes.proxy_relay import Upstream
from gyre.types.tasks import Command, Limits


async def main(folder: Path, script: str, processes: str, bubblewrap: Bubblewrap) -> None:
    place = SandboxLayout(folder=folder / "place", home=folder / "home")
    most = Limits(memory_bytes=2**28, disk_bytes=2**26, processes=int(processes))

    def proxy():
        url = (folder / "proxy").read_text()
        return "127.0.0.1", int(url)

    sandbox = LocalSandbox(
        "elsewhere", place, most=most, proxy=Upstream(proxy), bubblewrap=bubblewrap
    )
    workspace = folder / "workspace"
    workspace.mkdir()
    await sandbox.prepare(str(workspace))
    command = Command(argv=("sh", "-c", script))
    await sandbox.start(command, output=str(folder / "output"), most_bytes=2**16)
    print(sandbox.init, *sandbox.levels, sep="\n", flush=True)
    print("status", await sandbox.wait(), flush=True)
    await sandbox.kill()


if __name__ == "__main__":
    where, what, most_processes, libraries = sys.argv[1:]
    found = Bubblewrap(file=sys.stdin.buffer.read(), libraries=libraries or None)
    asyncio.run(main(Path(where), what, most_processes, found))
