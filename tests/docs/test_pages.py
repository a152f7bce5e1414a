"""Pages agree with the code they speak of, and with each other."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from gyre.config.sections import LimitsConfig, ProxyConfig, RouterConfig
from gyre.controller.run_dir import MAY_CHANGE

ROOT = Path(__file__).parents[2]


def sources():
    return [(path, path.read_text()) for path in sorted((ROOT / "src" / "gyre").rglob("*.py"))]


def rows(page):
    """Table rows of a page, as lists of cells."""
    lines = (ROOT / page).read_text().splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if "|" in line
    ]


def test_the_map_is_what_the_modules_say():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "map", "--check"], capture_output=True, text=True
    )

    assert (0, "") == (done.returncode, done.stderr)


def test_every_metric_is_described_and_every_described_metric_exists():
    made = {
        name
        for path, text in sources()
        if "proxy" in path.parts
        for name in re.findall(r'"(gyre_[a-z_]+)"', text)
    }
    described = set(re.findall(r"`(gyre_[a-z_]+)`", (ROOT / "docs" / "proxy.md").read_text()))

    assert made == described


def test_every_reason_of_a_fork_is_described():
    given = set()
    for _, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == "_fork":
                given |= words_returned(node)
    page = (ROOT / "docs" / "words.md").read_text().partition("## Forks")[2]

    assert given
    assert given == set(re.findall(r"^\| ([a-z-]+) \|", page, re.MULTILINE)) - {"word"}


def words_returned(function):
    """Every string in a function's return statements, either side of a condition included."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            values = (
                [node.value.body, node.value.orelse]
                if isinstance(node.value, ast.IfExp)
                else [node.value]
            )
            found |= {
                one.value
                for one in values
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return found


def test_the_limits_in_the_page_are_the_defaults():
    page = {cells[0].strip("`"): cells[1] for cells in rows("docs/proxy.md") if len(cells) == 3}
    limits = {field.name: field.default for field in fields(LimitsConfig)}
    limits["context_tokens"] = ProxyConfig().context_tokens
    limits["hold_s"] = RouterConfig().hold_s

    assert limits == {name: number(page.get(name, "0")) for name in limits}


def test_everything_that_may_change_when_a_run_is_resumed_is_listed():
    page = (ROOT / "docs" / "faults.md").read_text()
    section = page.partition("### What may change")[2].partition("\n### ")[0]
    named = set(re.findall(r"`([a-z_.]+)`", section))
    keys = {one.removeprefix("schedule.") for one in MAY_CHANGE}

    assert set() == keys - named


def number(cell):
    """`1,800 s` as 1800, `32 MiB` as bytes."""
    count, *rest = cell.replace(",", "").split()
    return int(count) * (2**20 if rest[:1] == ["MiB"] else 1)
