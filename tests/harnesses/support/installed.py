"""Agent programs that are installed without a network: an npm that makes what it is asked for."""

import os
from pathlib import Path

from gyre.harnesses.program import AgentProgram, Npm
from gyre.harnesses.registry import RECORD, folder_for

TOY = AgentProgram(
    name="toy",
    version="1.2.3",
    source=Npm(packages={"toy": "@maker/toy@{version}"}),
    start=("node_modules/toy/toy",),
    flags=("--quiet",),
    task=("--", "{instruction}"),
)
INSTALLS = """\
echo "$@" >> "$(dirname "$0")/asked"
cp package.json "$(dirname "$0")/package.json"
mkdir -p node_modules/toy
printf '#!/bin/sh\\necho toy 1.2.3 of "$HOME"\\n' > node_modules/toy/toy
chmod 755 node_modules/toy/toy
"""


def npm_on_path(folder: Path, monkeypatch, script: str = INSTALLS) -> Path:
    """The folder of a program called npm, which comes before any other."""
    folder.mkdir(exist_ok=True)
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def pretend_prepared(program: AgentProgram, root: Path, version: str | None = None) -> Path:
    """The folder of a program as it looks when it is installed."""
    folder = folder_for(program, version or program.version, root)
    starts = folder / program.start[0]
    starts.parent.mkdir(parents=True)
    starts.write_text("#!/bin/sh\n")
    starts.chmod(0o755)
    (folder / RECORD).write_text('{"said": "here", "layers": ["/opt/python"]}')
    return folder
