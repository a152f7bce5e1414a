"""Which lines of the package the whole suite runs, at several commits, by the same command.

    scripts/coverage f0a2a17 HEAD

Each commit is cloned and gets an environment of its own; every process that a test starts is
measured too, unless it is killed. What lies under build/coverage is not measured again. Tests may
fail, because some see that they are watched, and their number is kept.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.peers import results
from benchmarks.soak_tests import ENDED

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "build" / "coverage"
COVERAGE = "7.17.3"
SETTINGS = """
[run]
source_pkgs = gyre
parallel = true
data_file = {folder}/data
concurrency = thread
patch = subprocess, fork, _exit
"""
PYTEST = ("pytest", "-q", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")


def measure(commit: str, folder: Path) -> None:
    """Leaves coverage.json and the log of the tests in the folder."""
    folder.mkdir(parents=True)
    clone, settings = folder / "clone", folder / "rc"
    settings.write_text(SETTINGS.format(folder=folder))
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    }

    def run(*command: str, log: str = "setup.log", check: bool = True) -> None:
        with (folder / log).open("a") as out:
            subprocess.run(command, cwd=clone, env=environment, stdout=out, stderr=out, check=check)

    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    run("git", "checkout", "--quiet", commit)
    run("make", "harnesses")
    python = str(clone / ".venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", f"coverage=={COVERAGE}")
    measured = (python, "-m", "coverage")
    run(*measured, "run", f"--rcfile={settings}", "-m", *PYTEST, log="log", check=False)
    # What a process wrote that was killed meanwhile is left out, and said in the log.
    run(*measured, "combine", "--quiet", f"--rcfile={settings}", str(folder), check=False)
    output = str(folder / "coverage.json")
    run(*measured, "json", "--quiet", "-i", f"--rcfile={settings}", "-o", output)


def summary(folder: Path) -> dict[str, Any]:
    """Lines and those that ran, in all and by package, with what pytest said at its end."""
    statements: dict[str, int] = defaultdict(int)
    covered: dict[str, int] = defaultdict(int)
    for path, file in json.loads((folder / "coverage.json").read_text())["files"].items():
        package = path.partition("src/gyre/")[2].partition("/")[0].removesuffix(".py")
        statements[package] += file["summary"]["num_statements"]
        covered[package] += file["summary"]["covered_lines"]
    ended = ENDED.findall((folder / "log").read_text(errors="replace"))
    lines, ran = sum(statements.values()), sum(covered.values())
    return {
        "statements": lines,
        "covered": ran,
        "percent": round(100 * ran / lines, 2),
        "by_package": {one: [covered[one], statements[one]] for one in sorted(statements)},
        "tests": ended[-1].strip() if ended else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="+", help="what git knows them by; the oldest first")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    found: dict[str, list[dict[str, Any]]] = {}
    for name in args.commits:
        git = ["git", "-C", str(ROOT), "rev-parse", "--short", name]
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
        folder = MEASURED / commit
        if not (folder / "coverage.json").exists():
            measure(commit, folder)
        found[commit] = [summary(folder)]
        print(
            f"{commit}: {found[commit][0]['percent']} % of {found[commit][0]['statements']} lines"
        )
    path = results.write(
        "line-coverage",
        samples=found,
        settings={"tests": " ".join(PYTEST)},
        packages={"coverage": {"coverage": COVERAGE}},
        load_average=(before, os.getloadavg()[0]),
    )
    print(path)
    percents = [one["percent"] for (one,) in found.values()]
    return int(percents[-1] < percents[0])


if __name__ == "__main__":
    sys.exit(main())
