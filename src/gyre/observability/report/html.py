"""The page of a report: one HTML file, with style and pictures inside, that asks for nothing."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from gyre.observability.report.model import ReportPart, ReportRun, ReportTable
from gyre.observability.report.plotting import themed
from gyre.observability.report.tables import in_numbers, stands
from gyre.observability.terminal.colors import palette
from gyre.observability.terminal.text import many
from gyre.simulator.timeline import pace, placement_name

STYLE = Path(__file__).parent / "report.css"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may fetch: nothing; a browser holds it to that."""
MOST_OPEN_ROWS = 12
"""Rows of a table that is shown without being asked for."""

_VARIABLE = re.compile(r"var\((--x[0-9a-f]{6})\)")


def page(runs: Sequence[ReportRun], drawn: Mapping[str, str], parts: Sequence[ReportPart]) -> str:
    """All of it; `drawn` has the picture of each part that there is anything to draw of."""
    names = " · ".join(run.label for run in runs)
    shown = [part for part in parts if part.name in drawn]
    body = [
        *_head(runs),
        *_contents(shown),
        *_numbers(runs),
        *(line for part in shown for line in _section(part, runs, drawn[part.name])),
        *_foot(runs[0], [part for part in parts if part.name not in drawn]),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(names)} – Gyre report</title>",
            f"<style>\n{_style(drawn)}</style>",
            "</head>",
            "<body>",
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def _style(drawn: Mapping[str, str]) -> str:
    """The sheet, with the colours that it and the pictures use."""
    light, dark = palette("light"), palette("dark")
    sheet = STYLE.read_text()
    named = sorted(set(re.findall(r"var\(--([\w-]+)\)", sheet)) & set(light))
    used = {name for drawing in drawn.values() for name in _VARIABLE.findall(drawing)}
    lines = [f"  --{name}: light-dark({light[name]}, {dark[name]});" for name in named]
    lines += [
        f"  {variable}: light-dark({colour}, {shade});"
        for colour, (variable, shade) in sorted(themed().items())
        if variable in used
    ]
    return "\n".join([":root {", "  color-scheme: light dark;", *lines, "}", sheet])


def _head(runs: Sequence[ReportRun]) -> Iterator[str]:
    yield "<header>"
    title = "Report of a run" if len(runs) == 1 else f"Report of {many(len(runs), 'run')}"
    yield f'<p class="kind">Gyre · {title}</p>'
    yield f"<h1>{' <small>and</small> '.join(escape(run.label) for run in runs)}</h1>"
    for run in runs:
        name = "" if len(runs) == 1 else f"<strong>{escape(run.label)}</strong>: "
        mark = "" if run.state == "ended" and run.problem is None else ' class="open"'
        yield f"<p{mark}>{name}{escape(stands(run))}</p>"
        yield f'<p class="shape">{escape(_shape(run))}</p>'
    yield "</header>"


def _shape(run: ReportRun) -> str:
    shape = run.history.shape
    alone = f" and {shape.standalone_capacity} standalone" if shape.standalone_capacities else ""
    parts = [
        placement_name(shape.placement),
        f"{pace(shape)}, mu {shape.steps_per_burst}",
        f"{many(shape.num_cells, 'cell')} of {shape.cell_capacity} executions{alone}",
        f"batches of {shape.groups_per_batch} groups of {shape.executions_per_group}",
    ]
    if run.seed is not None:
        parts.append(f"seed {run.seed}")
    if run.started_at is not None:
        began = datetime.fromtimestamp(run.started_at, UTC)
        parts.append(f"begun {began:%Y-%m-%d %H:%M} UTC")
    return " · ".join(parts)


def _contents(parts: Sequence[ReportPart]) -> Iterator[str]:
    yield '<nav aria-label="Contents"><ul>'
    yield '<li><a href="#numbers">In numbers</a></li>'
    for part in parts:
        yield f'<li><a href="#{part.name}">{escape(part.title)}</a></li>'
    yield "</ul></nav>"
    yield "<main>"


def _numbers(runs: Sequence[ReportRun]) -> Iterator[str]:
    """Of one run as a list, of several as a table with differences."""
    found = in_numbers(runs)
    yield '<section id="numbers"><h2>In numbers</h2>'
    if len(runs) > 1:
        yield from _table(found)
    else:
        yield "<dl>"
        for name, value in found.rows:
            yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        yield "</dl>"
    yield "</section>"


def _section(part: ReportPart, runs: Sequence[ReportRun], drawn: str) -> Iterator[str]:
    having = [run for run in runs if part.needs(run)]
    said = [(run.label, part.says(run)) for run in having]
    alt = " ".join(f"{label}: {text}" for label, text in said) if len(runs) > 1 else said[0][1]
    yield f'<section id="{part.name}"><h2>{escape(part.title)}</h2>'
    for label, text in said:
        name = "" if len(runs) == 1 else f"<strong>{escape(label)}</strong>: "
        yield f"<p>{name}{escape(text)}</p>"
    label = escape(f"{part.title}. {alt}", quote=True)
    yield "<figure>"
    yield f'<div class="picture" role="img" tabindex="0" aria-label="{label}">{drawn}</div>'
    yield f"<figcaption>{escape(part.how)}</figcaption>"
    yield "</figure>"
    for run in having:
        for table in part.tables(run):
            yield from _folded(table, "" if len(runs) == 1 else f"{run.label}: ")
    yield "</section>"


def _folded(table: ReportTable, before: str) -> Iterator[str]:
    """A short table is open."""
    is_open = " open" if len(table.rows) <= MOST_OPEN_ROWS and not before else ""
    yield f"<details{is_open}><summary>{escape(before + table.caption)}</summary>"
    yield from _table(table)
    yield "</details>"


def _table(table: ReportTable) -> Iterator[str]:
    label = escape(table.caption, quote=True)
    yield f'<div class="table" role="region" tabindex="0" aria-label="{label}"><table>'
    head = "".join(
        f'<th scope="col"{_side(place, table)}>{escape(one)}</th>' if one else "<td></td>"
        for place, one in enumerate(table.head)
    )
    yield f"<thead><tr>{head}</tr></thead><tbody>"
    for row in table.rows:
        cells = "".join(
            f'<th scope="row">{escape(one)}</th>'
            if place == 0
            else f"<td{_side(place, table)}>{escape(one)}</td>"
            for place, one in enumerate(row)
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


def _side(place: int, table: ReportTable) -> str:
    return "" if place < table.num_words else ' class="number"'


def _foot(run: ReportRun, missing: Sequence[ReportPart]) -> Iterator[str]:
    yield "</main>"
    yield "<footer>"
    if missing:
        yield "<p>Not drawn:</p><ul>"
        for part in missing:
            yield f"<li>{escape(part.title)}: {escape(part.why_not(run))}</li>"
        yield "</ul>"
    yield (
        "<p>Beside this page: each picture as a PNG, all that was drawn in "
        "<code>report.json</code>, every step in <code>steps.csv</code>.</p>"
    )
    yield "</footer>"
