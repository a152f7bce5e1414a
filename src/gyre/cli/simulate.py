"""Simulate a run before it is paid for: its hours, its idle nodes, and how stale its groups get."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gyre.cli.arguments import (
    count,
    optional_package,
    progress,
    recorded_source,
    takes_values,
)
from gyre.types.errors import ConfigError

if TYPE_CHECKING:
    from gyre.simulator.request import ScenarioSource

PAPER = "paper"
PICTURES = (".png", ".svg")

Work = TypeVar("Work")
Left = TypeVar("Left")
Say: TypeAlias = Callable[[str], None]


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="a TOML file, a preset such as E0, or paper")
    takes_values(parser)
    add("--seed", type=int, help="of the first run (default: as in the file)")
    add(
        "--seeds",
        type=count,
        default=1,
        metavar="N",
        help="seeds from that one on (default: %(default)s)",
    )
    add("--jobs", type=count, default=1, metavar="N", help="runs at once (default: %(default)s)")
    add(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="a policy beside the file as it is; repeatable, and a wrong name lists all",
    )
    add("--compare", action="store_true", help="elastic, async and colocate beside each other")
    add("--json", metavar="PATH", help="write all records; - prints them instead of tables")
    add(
        "--plot",
        type=Path,
        metavar="PATH",
        help="draw the first seed's runs, .png or .svg; needs pip install 'gyre-rl[plot]'",
    )
    add("--journal", type=Path, metavar="PATH", help="write the one run's events as a journal")
    add(
        "--from-journal",
        type=Path,
        metavar="RUN",
        help="in place of CONFIG: a recorded run, and what it would be with other values",
    )
    add("--progress", action="store_true", help="say how far it is, without a terminal too")


def run(args: argparse.Namespace) -> None:
    if args.config == PAPER and args.from_journal is None:
        _paper(args)
        return
    _check_files(args)
    source = _source(args)

    from gyre.simulator.report import as_json, page
    from gyre.simulator.request import asked, from_tables, journaled, preset, simulated

    if source is None:
        given = preset(args.config, args.overrides)
    else:
        given = from_tables(source.where, source.tables, source.overrides)
    found = asked(
        given,
        seed=args.seed,
        num_seeds=args.seeds,
        compares=args.compare,
        policies=args.policy,
    )
    with progress(without_terminal=args.progress) as say:
        if args.journal is None:
            records = _run_all(found.runs, simulated, jobs=args.jobs, say=say)
        else:
            if len(found.runs) > 1:
                many = "leave --seeds, --compare and --policy out"
                raise ConfigError(f"--journal: holds one run; {many}")
            (scenario,) = found.runs
            record, events = journaled(scenario, say)
            records = [record]
    if args.journal is not None:
        import time

        from gyre.journal.journal import write
        from gyre.scheduler.replay import EVENTS
        from gyre.simulator.from_journal import header_of

        write(args.journal, header_of(scenario, started_at=time.time()), events, kinds=EVENTS)
    rans = found.ran(records)
    _tell(args, page(rans, [*found.refused, *(source.notes if source else ())]), as_json(rans))
    if args.plot is not None:
        from gyre.simulator.plots import figure, save
        from gyre.storage.files import replacing

        with replacing(args.plot) as part, part.open("wb") as file:
            save(figure(rans), file, kind="svg" if args.plot.suffix == ".svg" else "png")


def _paper(args: argparse.Namespace) -> None:
    """The paper's results beside ours."""
    unfit = {
        "section.key=value": args.overrides,
        "--policy": args.policy,
        "--compare": args.compare,
        "--plot": args.plot,
        "--journal": args.journal,
    }
    if refused := [name for name, value in unfit.items() if value]:
        raise ConfigError(f"paper: is what it is; leave {', '.join(refused)} out")
    _check_files(args)

    from gyre.simulator.report_paper import PaperReport, by_scenario, scenarios, seeded
    from gyre.simulator.request import simulated

    first = 0 if args.seed is None else args.seed
    found = scenarios()
    runs = seeded(found, range(first, first + args.seeds))
    with progress(without_terminal=args.progress) as say:
        records = _run_all(runs, simulated, jobs=args.jobs, say=say)
    report = PaperReport.of(by_scenario(found, records))
    _tell(args, report.lines(), report.as_json())


# What is asked for


def _source(args: argparse.Namespace) -> "ScenarioSource | None":
    """None for a preset."""
    from gyre.config.toml import read
    from gyre.simulator.paper import PAPER as PRESETS
    from gyre.simulator.request import ScenarioSource

    if args.from_journal is not None:
        return recorded_source(args)
    if args.config is None:
        raise ConfigError("expected a TOML file, a preset, `paper`, or --from-journal RUN")
    if args.config in PRESETS and not Path(args.config).exists():
        return None
    tables = read(Path(args.config), expected="a TOML file, a preset or `paper`")
    return ScenarioSource(where=args.config, tables=tables, overrides=args.overrides)


def _check_files(args: argparse.Namespace) -> None:
    """What is to be written can be, said before anything runs."""
    places = {"--json": args.json, "--plot": args.plot, "--journal": args.journal}
    for option, place in places.items():
        if place is None or str(place) == "-":
            continue
        path = Path(place)
        if path.is_dir() or not path.parent.is_dir():
            found = "a folder" if path.is_dir() else f"no folder {path.parent}"
            raise ConfigError(f"{option} {place}: expected a file that can be made, found {found}")
    if args.journal is not None and args.journal.exists():
        raise ConfigError(f"--journal {args.journal}: is there already")
    if args.plot is not None:
        _check_plot(args.plot)


def _check_plot(path: Path) -> None:
    if path.suffix not in PICTURES:
        raise ConfigError(f"--plot {path}: expected a name that ends in {' or '.join(PICTURES)}")
    with optional_package("matplotlib", "--plot needs matplotlib: pip install 'gyre-rl[plot]'"):
        import gyre.simulator.plots  # noqa: F401


# Running


def _run_all(
    runs: Sequence[Work], simulate: Callable[[Work, Say], Left], *, jobs: int, say: Say
) -> list[Left]:
    """What each left, in order."""
    many = len(runs)
    if jobs > 1 and many > 1:
        return list(_side_by_side(runs, simulate, jobs=min(jobs, many), say=say))
    return [
        simulate(one, _after(f"run {number} of {many}, ", say))
        for number, one in enumerate(runs, start=1)
    ]


def _side_by_side(
    runs: Sequence[Work], simulate: Callable[[Work, Say], Left], *, jobs: int, say: Say
) -> Iterator[Left]:
    """In processes of their own; they leave interrupts to this one, which ends them."""
    import multiprocessing
    import signal
    from concurrent.futures import ProcessPoolExecutor

    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    # A process starts with the first work for it, and ignores what this one ignores then.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        waiting = [pool.submit(simulate, run, _say_nothing) for run in runs]
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        for number, one in enumerate(waiting, start=1):
            yield one.result()
            say(f"run {number} of {len(runs)}")
    finally:
        pool.shutdown(cancel_futures=True)


def _after(beginning: str, say: Say) -> Say:
    return lambda text: say(beginning + text)


def _say_nothing(text: str) -> None:
    pass


# What is said


def _tell(args: argparse.Namespace, lines: Sequence[str], found: dict[str, Any]) -> None:
    """Tables unless JSON is printed in their place, and JSON where it is asked for."""
    import json

    from gyre.observability.terminal.colors import safe
    from gyre.storage.files import replacing

    if args.json == "-":
        print(json.dumps(found, allow_nan=False))
        return
    print(*map(safe, lines), sep="\n")
    if args.json is not None:
        with replacing(Path(args.json)) as part:
            part.write_text(json.dumps(found, allow_nan=False) + "\n")
