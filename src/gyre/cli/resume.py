"""Go on with a run whose controller has ended, in whichever way; nothing is done twice."""

import argparse
from pathlib import Path

from gyre.cli.arguments import takes_values
from gyre.cli.train import ENDS as ENDS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    takes_values(parser, says="in place of what the run was told, where nothing depends on it")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="kill the process that works on the run, if one does, because it hangs",
    )


def run(args: argparse.Namespace) -> int:
    from gyre.cli.train import print_summary, train_to_end
    from gyre.controller.main import clear_away
    from gyre.controller.run_dir import recorded, require_no_writer, standing
    from gyre.types.errors import ConfigError

    found = standing(args.run)
    if found is None:
        raise ConfigError(f"{args.run}: there is no run to resume")
    run = recorded(args.run, args.overrides)
    print(f"gyre resume: {found}", flush=True)
    require_no_writer(args.run, take_over=args.take_over)
    if found.stopped is not None:
        clear_away(args.run)
        return print_summary(run, found.stopped)
    return train_to_end(run, resumes=True)
