"""Show a run as it goes, in this terminal, from its journal; without one, a line for each step."""

import argparse
from pathlib import Path

from gyre.cli.status import ENDS as ENDS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a journal")


def run(args: argparse.Namespace) -> int:
    import sys
    import time

    from gyre.observability.terminal.colors import wants_colour
    from gyre.observability.terminal.status import follow

    try:
        return follow(
            args.run,
            sys.stdout,
            colour=wants_colour(sys.stdout),
            clock_s=time.monotonic,
            sleep=time.sleep,
        )
    except KeyboardInterrupt:
        # The user ends the display like that.
        return 0
