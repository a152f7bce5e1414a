"""Pages of reference are what the sources say: commands, facts, answers, variables."""

import ast
import re
import shutil
import subprocess
import sys

from tests.docs.support.pages import ROOT

from gyre.cli.main import COMMANDS, ends
from gyre.harnesses.command import environment
from gyre.rewards import command
from gyre.sandboxes import process, process_tree
from gyre.sandboxes.local import sandbox

SCRIPT = ROOT / "scripts" / "reference"
REFERENCE = ROOT / "docs" / "reference"
SOURCE = ROOT / "src" / "gyre"


def test_every_page_is_what_the_sources_say():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)

    assert (0, "") == (done.returncode, done.stderr)


STALE = {
    "docs/configuration.md": ("`supply_dwell_s` |", "`supply_dwel_s` |"),
    "docs/reference/cli.md": ("| `--take-over` |", "| `--takeover` |"),
    "docs/reference/journal.md": ("| `is_equal` |", "| `equal` |"),
    "docs/reference/page-api.md": ("| `water` |", "| `waters` |"),
}


def test_stale_pages_are_noticed_and_renewed(tmp_path):
    """The script works beside its own pages, so a copy of all is changed."""
    for folder in ("docs/reference", "scripts", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for page, (right, wrong) in STALE.items():
        text = (ROOT / page).read_text()
        assert right in text
        (tmp_path / page).write_text(text.replace(right, wrong))
    script = [sys.executable, tmp_path / "scripts" / "reference"]
    stale = subprocess.run([*script, "--check"], capture_output=True, text=True)
    subprocess.run(script, check=True)

    said = "".join(f"{page} is out of date: run `make map`\n" for page in STALE)
    assert (1, said) == (stale.returncode, stale.stderr)
    for page in STALE:
        assert (ROOT / page).read_text() == (tmp_path / page).read_text()


# The paths of the page


def calls(path, function):
    tree = ast.parse((SOURCE / path).read_text())
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function
    ]


def rows(page, first):
    """Cells of the table whose first column is called so."""
    text = (REFERENCE / page).read_text().partition(f"| {first} |")[2].partition("\n\n")[0]
    return [line[2:-1].split(" | ") for line in text.splitlines()[2:]]


def test_every_path_that_the_page_asks_for_is_described():
    strings = re.findall(
        r'"(/api/[a-z]+)"', (SOURCE / "observability" / "dashboard" / "server.py").read_text()
    )

    assert set(strings) == {cells[0].strip("`") for cells in rows("page-api.md", "path")}


def test_every_parameter_of_a_path_is_described():
    described = {
        cells[0].strip("`").removeprefix("/api/"): re.findall(r"`(\w+)`", cells[-1])
        for cells in rows("page-api.md", "path")
    }
    taken = [
        [one.value for one in call.args[1:]]
        for call in calls("observability/dashboard/api.py", "known")
    ]

    assert [described["story"], described["executions"]] == taken
    assert ["run", "execution", "call"] == described["call"]
    assert {name for names in described.values() for name in names} == {
        name
        for cells in rows("page-api.md", "parameter")
        for name in re.findall(r"`(\w+)`", cells[0])
    }


# Variables


def variables(heading):
    text = (REFERENCE / "variables.md").read_text().partition(f"## {heading}\n")[2]
    first = re.findall(r"^\| (`.*?) \|", text.partition("\n## ")[0], re.MULTILINE)
    return {name for cell in first for name in re.findall(r"`([A-Z_]+)`", cell)}


def asked_of_the_environment(path):
    """Names that a module looks up in its environment, or sets there."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="environ"), attr=how),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield how, name
            case (
                ast.Subscript(
                    value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))
                )
                | ast.Compare(
                    left=ast.Constant(value=str(name)), comparators=[ast.Attribute(attr="environ")]
                )
            ):
                yield "get", name


def test_every_variable_that_is_read_or_set_is_described():
    """`gyre.testing` is for tests, and stands for an agent program where it reads any."""
    found = {
        one
        for path in SOURCE.rglob("*.py")
        if not path.is_relative_to(SOURCE / "testing")
        for one in asked_of_the_environment(path)
    }
    elsewhere = {"HOME", "COLUMNS"}
    """Read by the standard library."""

    assert {name for how, name in found if how == "get"} | elsewhere == variables("What Gyre reads")
    assert {name for how, name in found if how == "setdefault"} == variables(
        "What processes of a run set for themselves"
    )


def test_every_variable_that_programs_are_given_is_described():
    given = {*environment("url", "key"), process_tree.MARK, "HOME", "TMPDIR", "PWD"}
    page = (REFERENCE / "variables.md").read_text()

    assert given == variables("What agent programs are given")
    assert {command.FILES, command.RESULTS} == variables("What evaluators are given")
    for name in {*sandbox.INHERITED, *process.INHERITED}:
        assert f"`{name}`" in page


# Exit statuses


def returned(path):
    """Numbers that a module's functions return as they stand, either side of a condition too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Return) and node.value is not None:
            for one in ast.walk(node.value):
                if isinstance(one, ast.Constant) and type(one.value) is int:
                    yield one.value


def test_every_status_that_a_command_returns_is_told():
    for name in COMMANDS:
        assert {0, 2} <= set(ends(name)), name
        (run,) = [
            node
            for node in ast.parse((SOURCE / "cli" / f"{name}.py").read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name == "run"
        ]
        if run.returns is not None and ast.unparse(run.returns) == "int":
            assert set(returned(SOURCE / "cli" / f"{name}.py")) <= set(ends(name)), name


# The proxy over HTTP


def test_every_path_that_the_proxy_answers_is_described():
    source = (SOURCE / "proxy" / "server.py").read_text()
    answered = set(re.findall(r'"((?:/[a-z_0-9]+)+)"', source))
    paths = (ROOT / "docs" / "proxy.md").read_text().partition("## Paths")[2].partition("## ")[0]

    assert answered == set(re.findall(r"(?<![\w>])((?:/[a-z_0-9]+)+)", paths))


def test_every_control_of_the_proxy_is_described():
    """As the cases of one match: method, and the parts of the path."""
    tree = ast.parse((SOURCE / "proxy" / "admin_api.py").read_text())
    known = set()
    for case in (node for node in ast.walk(tree) if isinstance(node, ast.match_case)):
        match case.pattern:
            case ast.MatchSequence(
                patterns=[ast.MatchValue(value=method), ast.MatchSequence(patterns=parts)]
            ):
                path = [
                    one.value.value if isinstance(one, ast.MatchValue) else "<>" for one in parts
                ]
                known.add(f"{method.value} /gyre/{'/'.join(path)}")
    text = (ROOT / "docs" / "proxy.md").read_text()
    described = re.findall(r"^\| `([A-Z]+ /gyre/[^`]*)`", text, re.MULTILINE)

    assert known
    assert known == {re.sub("<[a-z]+>", "<>", one) for one in described}
