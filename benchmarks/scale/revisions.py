"""Cost per event of two commits, in turn on one machine: `scale controller` and `live many`.

    python -m benchmarks.scale.revisions BEFORE AFTER

Each commit's own benchmarks run over its own sources, in a checkout beside this one, with this
environment's packages. Turns alternate, so that both commits have the same machine.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.live.compare import PACKAGES
from benchmarks.peers import results

ROOT = Path(__file__).parents[2]
CASE = re.compile(r"^(\w+, \d+ live) (\[.*\])$", re.MULTILINE)
RUN = re.compile(r"^(\{.*\})$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("commits", nargs=2, metavar="COMMIT")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="gyre-revisions-") as folder:
        checkouts = {one: checkout(one, Path(folder) / one) for one in args.commits}
        for turn in range(args.runs):
            turns = list(checkouts.items())
            for commit, place in turns if turn % 2 == 0 else reversed(turns):
                for name, sample in measured(place):
                    samples.setdefault(f"{commit}: {name}", []).append(sample)
                    print(f"{commit}: {name}", sample, flush=True)
    if not args.dry:
        path = results.write(
            "scale-revisions",
            samples=samples,
            settings={"runs": args.runs, "before": args.commits[0], "after": args.commits[1]},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def checkout(commit: str, place: Path) -> Path:
    """The commit's files."""
    place.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "x", "-C", str(place)], check=True, input=archive.stdout)
    return place


def measured(place: Path) -> list[tuple[str, dict[str, Any]]]:
    """One run of each benchmark over the sources there."""
    cases = CASE.findall(said(place, "benchmarks.scale.controller", "--runs", "1"))
    found = [(name, ast.literal_eval(listed)[0]) for name, listed in cases]
    (run,) = RUN.findall(said(place, "benchmarks.live.many"))
    return [*found, ("many", ast.literal_eval(run))]


def said(place: Path, module: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{place / 'src'}:{place}"}
    command = [sys.executable, "-m", module, "--dry", *arguments]
    done = subprocess.run(
        command, cwd=place, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
