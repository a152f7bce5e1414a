"""Installs an agent program, once per version, from its lock where it has one.

This alone needs a network. Nothing that a package brings is run meanwhile, but the program itself
when it is asked for its version.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gyre.harnesses.program import AgentProgram, Npm, Pip
from gyre.harnesses.registry import RECORD, InstalledProgram, find, folder_for, lock_of, placed
from gyre.types.errors import HarnessError, wrap_errors

INSTALL_S = 1800.0
ASK_S = 120.0
MOST_LETTERS = 2000
BUILDS_FOR = ("linux", "x86_64")
REQUIREMENTS = "requirements.txt"
_VENV_PYTHON = "venv/bin/python"
_NPM = ("--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error")
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def prepare(program: AgentProgram, version: str, root: Path) -> InstalledProgram:
    """Installs the version, whole, also where another process does so at the same time."""
    found = find(program, version, root)
    if found is not None:
        return found
    with wrap_errors(HarnessError, f"preparing {program.name} {version} in {root}"):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix="preparing-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            _build(program, version, made)
            _put_in_place(program, version, made, root)
    found = find(program, version, root)
    if found is None:
        message = f"preparing {program.name} {version}: it was removed again by somebody else"
        raise HarnessError(message)
    return found


def _build(program: AgentProgram, version: str, folder: Path) -> None:
    lock = lock_of(program, version)
    if lock is not None:
        shutil.copytree(lock, folder, dirs_exist_ok=True)
    layers: list[str] = []
    match program.source:
        case Npm(packages=packages):
            _install_npm(packages, version, folder)
        case Pip(requirements=requirements):
            _install_pip(requirements, version, folder)
            # The system's own is there in every sandbox, and must not cover that of an image.
            if not Path(sys.base_prefix).is_relative_to("/usr"):
                layers.append(sys.base_prefix)
    said = asked_version(program, folder)
    if version not in said:
        message = f"preparing {program.name} {version}: it says that it is {said!r}"
        raise HarnessError(message, retryable=False)
    record = {"version": version, "said": said, "layers": layers}
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    _make_read_only(folder)


def _put_in_place(program: AgentProgram, version: str, made: Path, root: Path) -> None:
    folder = folder_for(program, version, root)
    try:
        made.rename(folder)
    except OSError:
        # A folder is there already: of another installation that came first, or a broken one.
        if find(program, version, root) is None:
            shutil.rmtree(folder)
            made.rename(folder)


def _install_npm(packages: Mapping[str, str], version: str, folder: Path) -> None:
    if (sys.platform, platform.machine()) != BUILDS_FOR:
        found = f"{sys.platform} on {platform.machine()}"
        message = f"expected {' on '.join(BUILDS_FOR)}, which the packages are for, found {found}"
        raise HarnessError(message, retryable=False)
    npm = shutil.which("npm")
    if npm is None:
        message = "expected npm on the path, which installs the packages, found none"
        raise HarnessError(message, retryable=False)
    is_locked = (folder / "package-lock.json").exists()
    if not is_locked:
        (folder / "package.json").write_text(package_json(packages, version), encoding="utf-8")
    _run([npm, "ci" if is_locked else "install", *_NPM], folder)


def package_json(packages: Mapping[str, str], version: str) -> str:
    """What npm installs: each package in a folder of its own name."""
    wanted = {name: f"npm:{one.format(version=version)}" for name, one in packages.items()}
    return json.dumps({"private": True, "dependencies": wanted}, indent=2) + "\n"


def _install_pip(requirements: Sequence[str], version: str, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", "venv"], folder)
    locked = folder / REQUIREMENTS
    if locked.exists():
        wanted = ["--no-deps", "--require-hashes", "-r", str(locked)]
    else:
        wanted = [requirement.format(version=version) for requirement in requirements]
    _run([str(folder / _VENV_PYTHON), *_PIP, *wanted], folder)


def asked_version(program: AgentProgram, folder: Path) -> str:
    """What the installed program says, in a home of its own."""
    start = placed(folder, program.starts_version or program.start)
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home}
        said = _run([*start, *program.asks_version], folder, env=env, limit_s=ASK_S)
    lines = said.strip().splitlines()
    return lines[-1] if lines else ""


def _run(
    argv: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    limit_s: float = INSTALL_S,
) -> str:
    """What the command prints; HarnessError with the end of its complaint if it fails."""
    what = " ".join(argv[:4])
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{what}: took longer than {limit_s:g} s") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-MOST_LETTERS:]
        raise HarnessError(f"{what}: ended with status {done.returncode}: {said}")
    return done.stdout


def _make_read_only(folder: Path) -> None:
    """Files only, so that their owner can still remove them all."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
