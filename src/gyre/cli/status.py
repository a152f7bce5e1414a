"""Show how a run stands, on one screen; the exit status says it too."""

import argparse
from pathlib import Path

ENDS = {
    0: "it runs, or has taken all its steps",
    1: "it stopped itself before that",
    2: "there is no run, or its journal is damaged",
    3: "nobody works on it; `gyre resume` goes on",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run's folder, or a journal")
    add("--json", action="store_true", help="as one JSON object, for programs")


def run(args: argparse.Namespace) -> int:
    import sys

    if args.json:
        return _plain(args.run)
    from gyre.observability.terminal.colors import wants_colour
    from gyre.observability.terminal.progress import terminal_size
    from gyre.observability.terminal.status import screen

    colour = wants_colour(sys.stdout)
    width, _ = terminal_size(sys.stdout)
    lines, status = screen(args.run, colour=colour, encoding=sys.stdout.encoding, width=width)
    print(*lines, sep="\n")
    return status


def _plain(place: Path) -> int:
    import json

    from gyre.aio import run_loop
    from gyre.observability.dashboard.api import plain
    from gyre.observability.dashboard.journal_follower import FollowedRun
    from gyre.observability.follower import RunFollower
    from gyre.observability.history.state import RunState
    from gyre.observability.terminal.status import stands

    followed = RunFollower(place, RunState)
    followed.catch_up()
    watched = FollowedRun(place, key="a")
    run_loop(watched.look())
    print(json.dumps(plain(watched)))
    return stands(followed).status
