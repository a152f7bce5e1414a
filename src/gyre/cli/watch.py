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
    from gyre.observability.dashboard.server import show

    def on_start(link: str) -> None:
        print(f"gyre watch: {link}", flush=True)

    for place in args.runs:
        _check(place)
    show(args.runs, port=args.port, on_start=on_start)


def _check(place: Path) -> None:
    """What is no journal is said here, and not only on the page; one that is empty may grow."""
    from gyre.journal.journal import MAGIC, path_of
    from gyre.types.errors import ConfigError

    path = path_of(place) if place.is_dir() else place
    if not path.is_file():
        return
    with path.open("rb") as file:
        if not MAGIC.startswith(file.read(len(MAGIC))):
            raise ConfigError(f"{path}: not a run journal: it does not begin with {MAGIC.decode()}")
