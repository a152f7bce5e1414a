"""Show runs in a browser: who does what when, what is learnt, every tree; live and afterwards."""

import argparse
from pathlib import Path

ENDS = {
    0: "it was told to stop, by Ctrl-C or SIGTERM",
    2: "there is no such run",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run's folder, or the journal of a simulation; several are shown side by side",
    )
    add("--port", type=int, default=0, help="0 picks a free one (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    from gyre.run.showing import show

    def on_start(link: str) -> None:
        print(f"gyre watch: {link}", flush=True)

    show(args.runs, port=args.port, on_start=on_start)
