"""Train a model on what agents do with it: one run, from its file to its summary."""

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="the run's file, as gyre config check reads it")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="in place of the file's own"
    )


def run(args: argparse.Namespace) -> int:
    import os
    import sys

    from gyre.backends.trackers.open import open_trackers
    from gyre.plan.messages import StopReason
    from gyre.run.runfile import read_run
    from gyre.run.train import folder_of, report, train
    from gyre.watch.board import Board
    from gyre.watch.metrics import Metrics
    from gyre.watch.progress import Progress

    run = read_run(args.config, args.overrides)
    shape, cells = run.shape, run.config.cells
    print(f"gyre train: {run.config.run.name} in {folder_of(run)}")
    print(f"  starting {cells.count} cells of {run.config.model.name}, and a proxy", flush=True)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    progress = Progress(sys.stdout, Board(shape, name=run.config.run.name), colour=colour)
    folder_of(run).mkdir(parents=True, exist_ok=True, mode=0o700)
    trackers = open_trackers(run.config.trackers, name=run.config.run.name, folder=folder_of(run))
    try:
        listeners = [progress.heard, Metrics(trackers).heard]
        reason = train(run, listeners=listeners, tick=progress.tick)
    finally:
        progress.clear()
        trackers.close()
    print(report(run, encoding=sys.stdout.encoding))
    if reason is None:
        return 130
    return 0 if reason is StopReason.FINISHED else 1
