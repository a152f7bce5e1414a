"""Result files: raw samples with everything needed to judge them, written once."""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FORMAT = 1
RESULTS = ROOT / "benchmarks" / "results"
COVERED = ("src/gyre", "benchmarks")
"""Folders whose Python files a result depends on."""


def write(
    name: str,
    *,
    samples: Mapping[str, Any],
    settings: Mapping[str, Any],
    packages: Mapping[str, Mapping[str, str]],
    load_average: tuple[float, float],
    device: str | None = None,
    commit: str | None = None,
) -> Path:
    """The path of a new file; an older one of the same name and day is never touched.

    `device` names an accelerator; `commit` is asked of git unless given.
    """
    machine = _machine(device)
    result = {
        "format": FORMAT,
        "name": name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "load_average_before_and_after": load_average,
        "python": platform.python_version(),
        "packages": packages,
        "commit": commit or _git("rev-parse", "HEAD"),
        "sources": sources_digest(),
        "command": ["python", "-m", _module(), *sys.argv[1:]],
        "settings": settings,
        "samples": samples,
    }
    day = time.strftime("%Y-%m-%d", time.gmtime())
    stem = f"{day}-{machine['slug']}-{name}"
    RESULTS.mkdir(exist_ok=True)
    for number in range(1, 100):
        path = RESULTS / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            with path.open("x") as file:
                file.write(json.dumps(result, indent=1) + "\n")
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{stem}: a hundred results in one day")


def sources_digest() -> str:
    """One hash over every Python file a result depends on."""
    digest = hashlib.sha256()
    for folder in COVERED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def versions(made_of: Mapping[str, tuple[Path, Sequence[str]]]) -> dict[str, dict[str, str]]:
    """Installed versions of what each peer is made of, asked of its own interpreter.

    A package that is not there (litellm brings no httptools) is left out.
    """
    code = (
        "import json, platform, sys; from importlib.metadata import distributions; "
        "there = {one.name.lower(): one.version for one in distributions()}; "
        "found = {name: there[name] for name in sys.argv[1:] if name in there}; "
        "print(json.dumps({'python': platform.python_version()} | found))"
    )
    found = {}
    for name, (python, packages) in made_of.items():
        command = [str(python), "-c", code, *packages]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout)
    return found


def _module() -> str:
    """Name of the module that was run."""
    spec = sys.modules["__main__"].__spec__
    if spec is None:
        raise RuntimeError("expected to be run with python -m")
    return spec.name


def _machine(device: str | None) -> dict[str, Any]:
    """What the numbers were taken on; no host name, because it says nothing to a reader."""
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    slug = f"{cpu} {cores}core" if device is None else device
    return {
        "slug": re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-"),
        "device": "cpu" if device is None else device,
        "cpu": cpu,
        "cores": cores,
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release(),
    }


def _git(*words: str) -> str | None:
    """Answer of git; None where there is no repository or no commit yet."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
