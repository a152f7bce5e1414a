"""Measure a model, or the weights of a run's checkpoint, on a set of tasks."""

import argparse
from pathlib import Path

from gyre.cli import rollout
from gyre.cli.arguments import takes_tasks
from gyre.cli.rollout import ENDS as ENDS


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("subject", metavar="RUN|MODEL", help="a run's folder; or tiny, smollm2, a folder")
    takes_tasks(parser)
    add("--version", type=int, help="which checkpoint of a run (default: the newest)")
    rollout.shared(parser)


def run(args: argparse.Namespace) -> int:
    from gyre.evals.plan import EvalArguments, folder_for, planned, weights_of
    from gyre.evals.results import curve
    from gyre.model.checkpoint_store import EVALUATIONS, name_of
    from gyre.storage.files import RUN_FILE

    weights, of_run = weights_of(args.subject, args.version)
    if of_run is not None and args.config is None and (of_run / RUN_FILE).is_file():
        args.config = of_run / RUN_FILE
    asked = EvalArguments.of(args)
    beside = Path("runs/evaluate")
    if of_run is not None:
        beside = of_run / EVALUATIONS / name_of(weights.version)
    folder = folder_for(args.run, beside=beside)
    plan = planned(asked, weights, folder, where="gyre evaluate", engine_key=args.engine_key)
    status = rollout.execute(plan, tasks=asked.tasks, command="evaluate")
    if of_run is not None and status in (0, 1):
        print("\n".join(["", *curve(of_run)]))
    return status
