"""Check tasks before an agent is given them: untouched they score nothing, solved everything."""

import argparse

from gyre.cli.arguments import takes_tasks

WIDEST = 30
ENDS = {
    0: "all tasks are sound",
    1: "some are not, and it was said what is wrong",
    2: "something can be mended: an argument, a task that cannot be read, a sandbox",
    130: "interrupted",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("check",), help="what to do")
    takes_tasks(parser)
    add(
        "--sandbox",
        choices=("local", "process", "docker"),
        default="local",
        help="where their programs run (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    from gyre.config.run_config import SandboxConfig
    from gyre.evals.task_check import CheckedTask, check_tasks
    from gyre.observability.terminal.colors import safe
    from gyre.tasks.registry import section_for

    found: list[CheckedTask] = []

    def report(one: CheckedTask) -> None:
        found.append(one)
        scores = "  ".join(f"{way.way} {_score(way.score)}" for way in one.ways)
        print(
            f"{safe(one.task.id):<{WIDEST}}  {scores or 'has a rubric for a judge: not tried'}",
            flush=True,
        )
        for way in one.ways:
            if way.problem is not None:
                print(f"  {way.way}: {safe(way.problem)}")
                print("".join(f"    | {safe(line)}\n" for line in way.said), end="", flush=True)

    check_tasks(section_for(args.tasks), SandboxConfig(kind=args.sandbox), report)
    unsolved = sum(task.ways[1:] == () != task.ways for task in found)
    wrong = sum(not task.is_sound for task in found)
    print(f"{_tasks(len(found))}: {f'{wrong} to be mended' if wrong else 'sound'}")
    if unsolved:
        print(f"{_tasks(unsolved)} without a solution, so nobody knows what the most is")
    return 1 if wrong else 0


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.3g}"


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"
