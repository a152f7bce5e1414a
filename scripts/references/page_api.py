"""The JSON interface of the page: what its answers hold, read off the answers to a small run."""

import asyncio
import io
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from gyre.cli.main import main
from gyre.observability.dashboard import api as page_api
from gyre.observability.dashboard.journal_follower import FollowedRun
from gyre.observability.dashboard.panels import PANELS
from gyre.observability.dashboard.tree_sizes import TreeSizes

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = "examples/simulate.toml"


def lines() -> Iterator[str]:
    answers = _answers()
    story = answers["/api/story"]
    yield from ("", "## What answers hold", "")
    yield "A name with `[]` is a list, braces hold the names of a table, and units are in names."
    yield from ("", "| answer | what it holds |", "|---|---|")
    for path, answer in answers.items():
        yield f"| `{path}` | {names(answer, depth=1)} |"
    for part in ("run", "shape", "moment"):
        yield f"| `{part}` of `/api/story` | {names(story[part])} |"
    yield from ("", "## Panels", "", "| panel | what it says | what it holds |", "|---|---|---|")
    for name, panel in PANELS.items():
        says = " ".join((panel.__doc__ or "").split("\n\n")[0].split())
        yield f"| `{name}` | {says} | {names(story['panels'][name])} |"
    says = " ".join((TreeSizes.panel.__doc__ or "").split("\n\n")[0].split())
    yield f"| `trees` | {says} | null of a run without call logs |"


def _answers() -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "journal")
        with redirect_stdout(io.StringIO()):
            main(["simulate", str(ROOT / RUN), "--journal", str(journal)])
        run = FollowedRun(journal, key="a")
        asyncio.run(run.look())
        return {
            "/api/runs": page_api.runs({"a": run}),
            "/api/story": page_api.history({"a": run}, {}, lambda *_: None),
            "/api/executions": page_api.executions({"a": run}, {}),
        }


def names(value: Any, depth: int = 3) -> str:
    """The names in a table, and in those within it."""
    return ", ".join(_named(name, one, depth) for name, one in value.items())


def _named(name: str, value: Any, depth: int) -> str:
    mark = ""
    if isinstance(value, list | tuple):
        mark, value = "[]", value[0] if value else None
    inside = ""
    if isinstance(value, dict) and value and depth > 1:
        inside = f" {{{names(value, depth - 1)}}}"
    return f"`{name}{mark}`{inside}"
