"""Stop a run: its controller, or what that left when it ended by itself."""

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")


def run(args: argparse.Namespace) -> None:
    from gyre.controller.stop import stop
    from gyre.journal.journal import path_of
    from gyre.types.errors import ConfigError

    if not path_of(args.run).exists():
        raise ConfigError(f"{args.run}: there is no run to stop")
    left = stop(args.run, lambda text: print(f"gyre stop: {text}", flush=True))
    what = "nothing was left of it" if left == 0 else f"{left} that were left have ended"
    print(f"gyre stop: {_standing(args.run)}; {what}")


def _standing(folder: Path) -> str:
    """How far it has come, if that can be read: what runs is ended either way."""
    from gyre.controller.run_dir import standing
    from gyre.types.errors import ConfigError, LogDamaged

    try:
        found = standing(folder)
    except (ConfigError, LogDamaged) as error:
        return str(error)
    return f"{folder}: nothing is recorded of it" if found is None else str(found)
