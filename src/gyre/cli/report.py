"""Write a report of runs: a page that opens anywhere, pictures, and the numbers behind them."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gyre.types.errors import ConfigError


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
    _check_drawing()

    from gyre.observability.report.build import PAGE, files, placed, refuse_other, reported
    from gyre.observability.report.tables import stands

    folder = args.out or _own_folder(args.runs)
    refuse_other(folder)
    with _progress() as say:
        runs = reported(args.runs, say)
        say("drawing")
        placed(folder, files(runs))
    for one in runs:
        print(f"{one.label}: {stands(one)}")
    print(f"gyre report: {folder / PAGE}")


def _check_drawing() -> None:
    try:
        import gyre.observability.report.plotting  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ConfigError("pictures need matplotlib: pip install 'gyre-rl[plot]'") from error


def _own_folder(runs: list[Path]) -> Path:
    """One run keeps its report itself."""
    (first, *others) = runs
    return first / "report" if first.is_dir() and not others else Path("report")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says at a terminal what is being done, in place of what was done before."""
    import sys

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        say("")
