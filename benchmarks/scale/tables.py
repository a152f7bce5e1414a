"""What runs of four sizes need, computed from measured unit costs, as the tables of a page.

Rule 1: a number comes from a result file, from the code, from a simulated run, or from ASSUMED.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.scale.needs import ASSUMED, DAY_S, Needs, NoResult, Units
from benchmarks.scale.sizes import SIZES

from benchmarks import compare

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
Of = TypeVar("Of")
HOUR_S = 3_600.0
MIB, GIB = 2**20, 2**30

MISSING = "no result yet"
"""Of what a benchmark measures that has not been run; nothing is said in its place."""


def tables(units: Units) -> dict[str, str]:
    """By name, in Markdown."""
    all_of = [Needs(size=size, units=units) for size in SIZES]
    return {
        "sizes": _table(all_of, _SIZES),
        "control": _table(all_of, _CONTROL),
        "weights": _table(all_of, _WEIGHTS),
        "saturation": _table(all_of, _SATURATION),
        "units": _listed(units, _UNITS),
        "assumed": "\n".join(f"- {one}" for one in ASSUMED),
    }


Row = tuple[str, Callable[[Needs], str]]

_SIZES: tuple[Row, ...] = (
    ("cells x nodes", lambda one: f"{one.size.cells} x {one.size.nodes_per_cell:g}"),
    ("parameters", lambda one: _many(one.size.parameters)),
    ("live executions", lambda one: f"{one.live:,}"),
    ("groups x executions of a step", lambda one: f"{one.size.groups} x {one.size.members}"),
    ("hours of a step", lambda one: _number(one.size.step_s / HOUR_S)),
    ("executions an hour", lambda one: _number(one.size.executions_s * HOUR_S)),
    ("calls a second", lambda one: _number(one.calls_s)),
    ("events a second", lambda one: _number(one.size.events_s)),
)
_CONTROL: tuple[Row, ...] = (
    ("control messages a second", lambda one: _number(sum(one.messages_s.values()))),
    ("controller, cores", lambda one: _number(one.controller_cores)),
    ("proxy, cores", lambda one: _number(one.proxy_cores)),
    ("**proxy shards**", lambda one: f"**{one.shards}**"),
    ("proxy memory, all shards, GiB", lambda one: _number(one.proxy_bytes / GIB)),
    ("controller memory for executions, MiB", lambda one: _number(one.controller_bytes / MIB)),
    ("journal, MB a day", lambda one: _number(one.journal_bytes_day / 1e6)),
    ("call logs, GB a day", lambda one: _number(one.log_bytes_day / 1e9)),
    (
        "return of a controller, CPU s for its executions",
        lambda one: _number(one.units.recalled_s(one.live)),
    ),
)
_WEIGHTS: tuple[Row, ...] = (
    ("weights, bf16, GB", lambda one: _number(one.size.weight_bytes / 1e9)),
    ("trainer's state of the core, GB", lambda one: _number(one.size.state_bytes / 1e9)),
    ("a publication to all engines, GB", lambda one: _number(one.published_bytes / 1e9)),
    ("the same out of the core's nodes, s", lambda one: _number(one.published_s)),
    ("publications a day", lambda one: _number(DAY_S / one.size.publication_s)),
    ("gradients of a step, GB", lambda one: _number(one.gradient_bytes / 1e9)),
    ("the same into the core's nodes, s", lambda one: _number(one.gradient_s)),
    ("keys and values of a token, KB", lambda one: _number(one.size.cache_token_bytes / 1e3)),
    ("keys and values of live executions, TB", lambda one: _number(one.cache_bytes / 1e12)),
    ("a GPU's share of an engine's weights, GB", lambda one: _shared(one.size.weight_bytes, one)),
    ("a GPU's share of the trainer's state, GB", lambda one: _shared(one.size.state_bytes, one)),
    (
        "a GPU's share of keys and values, GB",
        lambda one: _shared(one.cache_bytes / one.size.cells, one),
    ),
    ("executions moved an hour", lambda one: _number(one.size.moves_s * HOUR_S)),
    ("keys and values that move along, GB/s", lambda one: _number(one.carried_bytes_s / 1e9)),
)
_SATURATION: tuple[Row, ...] = (
    ("one proxy process", lambda one: _share(one.proxy_cores)),
    ("the controller's core", lambda one: _share(one.controller_cores)),
    (
        "the core cell's network, publishing",
        lambda one: _share(one.published_s / one.size.publication_s),
    ),
    ("the core cell's network, gradients", lambda one: _share(one.gradient_s / one.size.step_s)),
)

Unit = tuple[str, Callable[[Units], str], str]
"""What it is, its value, and where it comes from."""

_UNITS: tuple[Unit, ...] = (
    ("calls of an execution", lambda units: f"{units.calls:,}", "`case_study.py`"),
    ("unique tokens of one", lambda units: f"{units.unique_tokens:,}", "`case_study.py`"),
    ("tokens of a prompt, mean", lambda units: f"{units.context_tokens:,.0f}", "`case_study.py`"),
    (
        "proxy CPU of such a call, ms",
        lambda units: _number(1000 * units.call_cpu_s),
        "`short`, `long`",
    ),
    (
        "proxy memory of a unique token, bytes",
        lambda units: _number(units.of("held", "gyre bytes_per_token")),
        "`held`",
    ),
    (
        "call log of a unique token, bytes",
        lambda units: _number(units.log_bytes_per_token),
        "`scale-written`",
    ),
    (
        "journal of an execution, bytes",
        lambda units: _number(units.journal_bytes),
        "`live-many`",
    ),
    (
        "controller CPU of an execution, ms",
        lambda units: _number(1000 * units.launch_cpu_s),
        "`live-many`",
    ),
    (
        "controller CPU of an event, 2,048 live, ms",
        lambda units: _number(1000 * units.event_s(2_048)),
        "`scheduler`, `scale-controller`",
    ),
)


def _listed(units: Units, rows: Iterable[Unit]) -> str:
    lines = ["| what | measured | benchmark |", "|---|---|---|"]
    for says, value, where in rows:
        lines.append(f"| {says} | {_known(value, units)} | {where} |")
    return "\n".join(lines)


def _table(all_of: Sequence[Needs], rows: Iterable[Row]) -> str:
    head = "| | " + " | ".join(one.size.name for one in all_of) + " |"
    lines = [head, "|---" * (len(all_of) + 1) + "|"]
    for name, value in rows:
        lines.append(f"| {name} | " + " | ".join(_known(value, one) for one in all_of) + " |")
    return "\n".join(lines)


def _known(value: Callable[[Of], str], of: Of) -> str:
    try:
        return value(of)
    except NoResult:
        return MISSING


def _shared(bytes_of_cell: float, one: Needs) -> str:
    return _number(bytes_of_cell / one.size.cell_gpus / 1e9)


def _share(value: float) -> str:
    return f"{_number(100 * value)} %"


def _number(value: float) -> str:
    """Two significant digits, because estimates have no more."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        digits = len(str(int(abs(value)))) - 2
        return f"{round(value, -digits):,.0f}"
    return f"{value:.2g}"


def _many(value: float) -> str:
    return f"{value / 1e12:g}T" if value >= 1e12 else f"{value / 1e9:g}B"


def with_tables(page: str, found: Mapping[str, str]) -> str:
    """The page with each table between its marks."""
    for name, table in found.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, marked, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (marked and closed):
            raise ValueError(f"{PAGE.name}: expected {begin} and {end}")
        page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scaling.md")
    args = parser.parse_args()
    found = tables(Units(compare.load_all()))
    print("\n\n".join(found.values()))
    if args.write:
        PAGE.write_text(with_tables(PAGE.read_text(), found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
