"""Execute groups of tasks without training: for evaluation, and to collect what agents do."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gyre.cli.arguments import takes_tasks
from gyre.types.errors import ConfigError

if TYPE_CHECKING:
    from gyre.evals.plan import EvalSpec
    from gyre.evals.results import EvalResult

MEMBERS = 4
CONCURRENCY = 8

ENDS = {
    0: "all executions have closed, and at least one was assessed",
    1: "all executions have closed, and none was assessed",
    2: "the tasks, the model or a setting cannot be used as they are",
    130: "interrupted; the same command with `--run` goes on",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    takes_tasks(parser)
    add("--model", help="what is served: tiny, smollm2, or a folder (default: as --engine says)")
    shared(parser)


def shared(parser: argparse.ArgumentParser) -> None:
    """What `gyre evaluate` takes too."""
    add = parser.add_argument
    add(
        "--engine",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="an engine that is there already: http://host:port, after gyre=, sglang= or vllm= "
        "if need be; repeatable (default: one is started)",
    )
    add("--engine-key", type=Path, metavar="FILE", help="file with the key that engines ask for")
    add("--harness", metavar="NAME", help="the agent program; or any command after --")
    add("--n", type=int, default=MEMBERS, help="executions of each task (default: %(default)s)")
    add(
        "--concurrency",
        type=int,
        default=CONCURRENCY,
        help="executions at once (default: %(default)s)",
    )
    add(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="a new folder for what is recorded, or one whose rollout goes on (default: the first "
        "free one under runs/, or under evaluations/ of the run)",
    )
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="a run file, for all that is not said here (default: that of the run evaluated)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="section.key=value",
        help="a setting as in a run file, such as deadlines.agent_s=600; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    from gyre.evals.plan import EvalArguments, ServedWeights, folder_for, model_in, planned
    from gyre.evals.runner import model_at

    asked = EvalArguments.of(args)
    model = args.model or model_in(args.config)
    if model is None and asked.engines:
        model = model_at(asked.engines, args.engine_key)
    if model is None:
        raise ConfigError("expected --model, --engine, or --config with a [model]")
    folder = folder_for(args.run, beside=Path("runs/rollout"))
    plan = planned(
        asked, ServedWeights(model=model), folder, where="gyre rollout", engine_key=args.engine_key
    )
    return execute(plan, tasks=asked.tasks, command="rollout")


class _Progress:
    """Prints a line when a rollout begins, and one for each execution that closes."""

    def __init__(self, plan: "EvalSpec", command: str) -> None:
        self._plan = plan
        self._command = command
        self._num_done = 0
        self.total = 0

    def begun(self, num_executions: int) -> None:
        self.total, plan = num_executions, self._plan
        what = ", ".join(plan.engines) if plan.engines else f"an engine of {plan.weights.model}"
        print(f"gyre {self._command}: {self.total} executions in {plan.folder}")
        print(f"  starting a proxy before {what}", flush=True)

    def closed(self, result: "EvalResult") -> None:
        from gyre.evals.results import line
        from gyre.observability.terminal.colors import safe

        self._num_done += 1
        print(safe(line(result, num_done=self._num_done, total=self.total)), flush=True)


def execute(plan: "EvalSpec", *, tasks: str, command: str) -> int:
    """Carries a plan out, with a line for each execution; the exit status."""
    from gyre.evals.results import counts, page, summed_up
    from gyre.evals.runner import roll_out
    from gyre.observability.terminal.colors import safe

    progress = _Progress(plan, command)
    results, is_whole = roll_out(plan, progress=progress)
    found = summed_up(plan, results, tasks=tasks, is_whole=is_whole).spread
    print("\n".join(["", *map(safe, page(found))]))
    if not is_whole:
        many = f"{len(results)} of {progress.total}"
        print(f"interrupted after {many}: {counts(results) or 'none closed'}")
        print(f"the same command goes on with --run {plan.folder}")
        return 130
    return 0 if found.num_valid > found.num_placeholders else 1
