"""Write a report of runs: a page that opens anywhere, pictures, and the numbers behind them."""

import argparse
from pathlib import Path

from gyre.cli.arguments import optional_package, progress


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run's folder, or the journal of a simulation; several are compared with the first",
    )
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where to write it (default: report in the run's folder, or in this one for several)",
    )


def run(args: argparse.Namespace) -> None:
    with optional_package("matplotlib", "pictures need matplotlib: pip install 'gyre-rl[plot]'"):
        import gyre.observability.report.plotting  # noqa: F401

    from gyre.observability.report.build import PAGE, files, placed, refuse_other, reported
    from gyre.observability.report.tables import stands
    from gyre.observability.terminal.colors import safe

    folder = args.out or _own_folder(args.runs)
    refuse_other(folder)
    with progress() as say:
        runs = reported(args.runs, say)
        say("drawing")
        placed(folder, files(runs))
    for one in runs:
        print(safe(f"{one.label}: {stands(one)}"))
    print(f"gyre report: {folder / PAGE}")


def _own_folder(runs: list[Path]) -> Path:
    """One run keeps its report itself."""
    (first, *others) = runs
    return first / "report" if first.is_dir() and not others else Path("report")
