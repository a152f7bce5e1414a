"""Erase executions from a run folder: calls, workspace and output go; ending and score stay."""

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder that nobody works on")
    parser.add_argument("names", nargs="+", metavar="EXECUTION", help="names of executions")


def run(args: argparse.Namespace) -> None:
    from gyre.rollout.erase import erase

    erase(args.run, args.names)
    for name in args.names:
        print(f"execution {name} is erased")
