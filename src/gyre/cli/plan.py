"""Choose phi, mu and the size of cells for a target staleness, each pair simulated briefly."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gyre.cli.arguments import recorded_source, takes_values
from gyre.types.errors import ConfigError

if TYPE_CHECKING:
    from gyre.simulator.request import ScenarioSource

STEPS = 24
GROUPS_PER_BATCH = 32
EXECUTIONS_PER_GROUP = 8
MOST_COUNT = 100_000
PLAIN = (
    "cells",
    "capacity",
    "hours",
    "groups_per_batch",
    "executions_per_group",
    "groups_per_node_hour",
)
"""Options that stand for a file; with a file they are refused."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="a TOML file as for `gyre simulate`")
    takes_values(parser)
    add("--from-journal", type=Path, metavar="RUN", help="in place of CONFIG: a recorded run")
    add(
        "--staleness",
        required=True,
        metavar="X",
        help="the mean staleness to meet, in versions: phi + (mu - 1) / 2",
    )
    add("--cells", type=_count, metavar="K", help="without CONFIG: cells")
    add("--capacity", type=_count, metavar="C", help="without CONFIG: executions a cell serves")
    add("--hours", type=float, metavar="H", help="without CONFIG: mean hours of an execution")
    add(
        "--groups-per-batch",
        type=_count,
        metavar="B",
        help=f"without CONFIG: groups of a step (default: {GROUPS_PER_BATCH})",
    )
    add(
        "--executions-per-group",
        type=_count,
        metavar="N",
        help=f"without CONFIG: executions of a group (default: {EXECUTIONS_PER_GROUP})",
    )
    add(
        "--groups-per-node-hour",
        type=float,
        metavar="RATE",
        help="without CONFIG: groups a node trains in an hour (default: half a rollout's time)",
    )
    add("--nodes", type=_count, metavar="N", help="nodes in all (default: those of the cells)")
    add(
        "--nodes-per-cell",
        metavar="SIZE[:CAPACITY],...",
        help="sizes of cells to try; a capacity left out grows with the size",
    )
    add("--steps", type=_count, default=STEPS, help="steps to simulate (default: %(default)s)")
    add("--seed", type=int, help="of the simulations (default: as in the file)")
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    import json
    from dataclasses import replace
    from fractions import Fraction

    staleness = _staleness(args.staleness)
    parts = _sizes(args.nodes_per_cell)
    source = _source(args)

    from gyre.simulator.planner import (
        CellSize,
        Layout,
        advise,
        as_json,
        assumed,
        divided,
        layouts_of,
        lines,
        scenario_for,
    )
    from gyre.simulator.request import from_tables

    if source is not None:
        scenario = from_tables(source.where, source.tables, source.overrides)
        notes: Sequence[str] = source.notes
    else:
        if args.cells is None:
            size, capacity = parts[0]
            first = divided(args.nodes, size, capacity or 0)
        else:
            each = 1 if args.nodes is None else args.nodes / max(1, args.cells)
            first = Layout(num_cells=args.cells, cell_capacity=args.capacity, nodes_per_cell=each)
        scenario = scenario_for(
            layout=first,
            mean_h=args.hours,
            groups_per_batch=_given(args.groups_per_batch, GROUPS_PER_BATCH),
            executions_per_group=_given(args.executions_per_group, EXECUTIONS_PER_GROUP),
            groups_per_node_hour=args.groups_per_node_hour,
        )
        notes = assumed(args.groups_per_node_hour)
    if args.seed is not None:
        scenario = replace(scenario, seed=args.seed)
    sizes = [CellSize(nodes_per_cell=size, capacity=capacity) for size, capacity in parts]
    layouts = layouts_of(scenario, num_nodes=args.nodes, sizes=sizes)
    advice = advise(scenario, staleness=Fraction(staleness), layouts=layouts, steps=args.steps)
    if args.json:
        print(json.dumps(as_json(advice, notes), allow_nan=False))
    else:
        print(*lines(scenario, advice, notes), sep="\n")


def _source(args: argparse.Namespace) -> "ScenarioSource | None":
    """None where options take the place of tables, and are all there."""
    is_file = args.config is not None and "=" not in args.config
    if is_file and args.from_journal is not None:
        raise ConfigError(f"{args.config}: --from-journal takes the place of a file; leave one out")
    if not is_file and args.from_journal is None:
        _check_options(args)
        return None
    given = [f"--{name.replace('_', '-')}" for name in PLAIN if getattr(args, name) is not None]
    if given:
        raise ConfigError(f"{', '.join(given)}: the file or journal says it; use section.key=value")
    if args.nodes is not None and args.nodes_per_cell is None:
        raise ConfigError(f"--nodes {args.nodes}: in cells of which size? --nodes-per-cell says")
    if args.from_journal is None:
        from gyre.config.toml import read
        from gyre.simulator.request import ScenarioSource

        tables = read(Path(args.config), expected="a TOML file")
        return ScenarioSource(where=args.config, tables=tables, overrides=args.overrides)
    return recorded_source(args)


def _check_options(args: argparse.Namespace) -> None:
    if args.config is not None:
        raise ConfigError(f"{args.config}: there is no file whose value it could replace")
    if args.hours is None:
        raise ConfigError("expected CONFIG, --from-journal, or --cells, --capacity and --hours")
    is_divided = args.nodes is not None and ":" in (args.nodes_per_cell or "").split(",")[0]
    if (args.cells is None) != (args.capacity is None) or (args.cells is None and not is_divided):
        raise ConfigError(
            "expected --cells and --capacity, or --nodes and --nodes-per-cell SIZE:CAPACITY, "
            "beside --hours"
        )


def _staleness(text: str) -> str:
    import re

    # Digits and a point, because an exponent could ask for a number that fills the memory.
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text):
        return text
    raise ConfigError(f"--staleness {text}: expected a number of versions, such as 1 or 1.5")


def _sizes(text: str | None) -> list[tuple[int, int | None]]:
    found: list[tuple[int, int | None]] = []
    for part in () if text is None else text.split(","):
        size, is_given, capacity = part.partition(":")
        try:
            found.append((int(size), int(capacity) if is_given else None))
        except ValueError as error:
            raise ConfigError(
                f"--nodes-per-cell {part}: expected SIZE or SIZE:CAPACITY, such as 4:144"
            ) from error
    return found


def _count(text: str) -> int:
    """More than a simulation can hold is refused before one begins."""
    try:
        count = int(text)
    except ValueError:
        count = MOST_COUNT + 1
    if count > MOST_COUNT:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at most {MOST_COUNT:,}; found {text!r}"
        )
    return count


def _given(value: int | None, otherwise: int) -> int:
    """Told apart from absent, so that a 0 is refused."""
    return otherwise if value is None else value
