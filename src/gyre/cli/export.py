"""Write a run's training rows, its call records, or its executions as trials for Harbor."""

import argparse
from collections.abc import Callable
from pathlib import Path

from gyre.cli.arguments import count, optional_package
from gyre.types.errors import ConfigError

ENDINGS = {
    "jsonl": "rows.jsonl",
    "parquet": "rows.parquet",
    "safetensors": "rows.safetensors",
    "calls": "calls.jsonl",
    "harbor": "harbor/job",
}
HELD_OUT = "eval-"
"""How names of executions begin that only measure, and that nothing is trained on (SPEC 6.6)."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder, or one call log")
    add(
        "--format",
        choices=tuple(ENDINGS),
        required=True,
        help="rows as jsonl, parquet or safetensors; calls: the records as jsonl; harbor: trials",
    )
    add(
        "--out",
        type=Path,
        metavar="PATH",
        help="where to (default: rows.* or calls.jsonl in RUN, or harbor/job, which is a folder); "
        "- is standard output, for jsonl",
    )
    add(
        "--max-trajectories",
        type=_count_or_all,
        default=5,
        metavar="N",
        help="most rows of one execution, or all (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="seed of the draw (default: %(default)s)")
    add("--execution", metavar="ID", help="export this one only (default: all)")
    add(
        "--held-out",
        action="store_true",
        help="rows of held-out evaluations too, which no run trains on",
    )


def run(args: argparse.Namespace) -> None:
    from gyre.storage.files import replacing
    from gyre.trajectory.loading import find

    if args.format == "harbor":
        _trials(args)
        return
    paths = find(args.run, args.execution)
    if args.format != "calls" and args.execution is None and not args.held_out:
        is_one = args.run.is_file()
        paths = [path for path in paths if is_one or not path.name.startswith(HELD_OUT)]
    write = _records(paths) if args.format == "calls" else _rows(args, paths)
    if str(args.out) == "-":
        _print(args.format, write)
        return
    name = ENDINGS[args.format]
    beside = args.run / name if args.run.is_dir() else args.run.with_suffix(f".{name}")
    out = args.out or beside
    if out.is_dir():
        raise ConfigError(f"{out}: expected a file, found a folder")
    with replacing(out) as part:
        said = write(part)
    print(f"{out}: {said}")


def _trials(args: argparse.Namespace) -> None:
    from gyre.export.harbor import write_job

    if args.execution is not None or str(args.out) == "-":
        raise ConfigError("expected a folder for all executions of a run with --format harbor")
    out = args.out or args.run / ENDINGS["harbor"]
    print(f"{out}: {write_job(args.run, out)} trials")


Write = Callable[[Path], str]
"""Writes the file and says what is in it."""


def _rows(args: argparse.Namespace, paths: list[Path]) -> Write:
    from gyre.export.rows import FORMAT, Totals, drawn
    from gyre.observability.terminal.text import many

    match args.format:
        case "safetensors":
            from gyre.export.safetensors_rows import write_rows
        case "parquet":
            missing = "parquet needs pyarrow: pip install 'gyre-rl[parquet]'"
            with optional_package("pyarrow", missing):
                from gyre.export.parquet import write_rows
        case _:
            from gyre.export.jsonl import write_rows
    how = {"seed": args.seed, "max_trajectories": args.max_trajectories}

    def write(part: Path) -> str:
        totals = Totals()
        write_rows(part, totals.counted(drawn(paths, **how)), {"format": FORMAT, **how})
        said = f"{many(totals.rows, 'row')} of {many(totals.executions, 'execution')}"
        said += f", {many(totals.tokens, 'token')}, {many(totals.targets, 'target')}"
        return said + (f"; {totals.incomplete:,} incomplete" if totals.incomplete else "")

    return write


def _records(paths: list[Path]) -> Write:
    from gyre.export.jsonl import write_records
    from gyre.observability.terminal.text import many
    from gyre.trajectory.loading import load

    def write(part: Path) -> str:
        num_records = write_records(part, map(load, paths))
        return f"{many(num_records, 'record')} of {many(len(paths), 'execution')}"

    return write


def _print(name: str, write: Write) -> None:
    """The same through a file of its own, so that nothing half is printed."""
    import shutil
    import sys
    import tempfile

    if name not in ("jsonl", "calls"):
        raise ConfigError(f"--out -: {name} needs a file; jsonl and calls can be printed")
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part"
        said = write(part)
        with part.open("rb") as whole:
            shutil.copyfileobj(whole, sys.stdout.buffer)
    print(said, file=sys.stderr)


def _count_or_all(text: str) -> int | None:
    return None if text == "all" else count(text, expected="a number of 1 or more, or all")
