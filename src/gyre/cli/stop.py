"""Stop a run: whoever works on it, or what it left when its controller ended by itself."""

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")


def run(args: argparse.Namespace) -> None:
    from gyre.run.standing import standing
    from gyre.run.stopping import stop
    from gyre.words.errors import ConfigError

    if standing(args.run) is None:
        raise ConfigError(f"{args.run}: there is no run to stop")
    left = stop(args.run)
    what = "nothing was left of it" if left == 0 else f"{left} that were left have ended"
    found = standing(args.run)
    print(f"gyre stop: {found}; {what}")
