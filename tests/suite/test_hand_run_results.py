"""Results of groups that run by hand: written when all is kept, and known to be stale."""

import ast
import hashlib
import json

import pytest
from tests.hand_run_results import Promises, holding, newest

from benchmarks import covered

pytest_plugins = ["pytester"]
TESTS = """
import pytest
pytestmark = pytest.mark.real
def test_one(): pass
def test_two(): assert not {broken}
"""


@pytest.mark.parametrize(
    ("broken", "asked", "written"),
    [
        (False, (), [{"test_one", "test_two"}]),
        (True, (), []),
        (False, ("-k", "one"), []),
        (False, ("-m", "not real"), []),
    ],
)
def test_a_run_is_written_down_when_every_promise_is_kept(pytester, broken, asked, written):
    pytester.makeini("[pytest]\nmarkers = real: by hand\n")
    pytester.makepyfile(TESTS.format(broken=broken))
    found = []

    pytester.inline_run(
        "-p", "no:xdist", *asked, plugins=[Promises("real", lambda kept, _: found.append(kept))]
    )

    assert written == [{name.rpartition("::")[2] for name in kept} for kept in found]


def test_a_run_of_some_files_is_not_written_down(pytester):
    pytester.makeini("[pytest]\nmarkers = real: by hand\n")
    one = pytester.makepyfile(test_one=TESTS.format(broken=False))
    pytester.makepyfile(test_two=TESTS.format(broken=False))
    found = []

    for asked in ([one], []):
        promises = Promises("real", lambda kept, _: found.append(len(kept)))
        pytester.inline_run("-p", "no:xdist", *asked, plugins=[promises])

    assert [4] == found


def test_the_newest_result_of_a_name_counts(tmp_path):
    for at in ("2026-01-02T00:00:00Z", "2026-01-10T00:00:00Z", "2026-01-03T00:00:00Z"):
        (tmp_path / f"{at[:10]}.json").write_text(json.dumps({"name": "one", "at": at}))
    (tmp_path / "other.json").write_text('{"name": "two", "at": "2027-01-01T00:00:00Z"}')

    assert "2026-01-10T00:00:00Z" == newest("one", tmp_path)["at"]
    assert (
        "2026-01-03T00:00:00Z"
        == newest("one", tmp_path, such=lambda it: "10" not in it["at"])["at"]
    )
    with pytest.raises(AssertionError, match="no result three"):
        newest("three", tmp_path)


def test_what_was_measured_holds_and_what_the_table_gives_a_reason_for(tmp_path):
    reason = "no line of it is reached by anything that was measured"
    table = tmp_path / "still_hold.md"
    rows = [
        f"| {'a' * 16} | {'b' * 16} | {reason} |",
        f"| {'c' * 16} | {'d' * 16} | {reason} |",
        f"| {'a' * 16} | {'e' * 16} | because |",
    ]
    table.write_text("\n".join(rows) + "\n")

    assert {"a" * 16, "b" * 16} == holding("a" * 16, table)


@pytest.mark.parametrize("name", sorted(json.loads(covered.TABLE.read_text())))
def test_every_entry_of_what_is_covered_is_there(name):
    entries = json.loads(covered.TABLE.read_text())[name]
    lost = []
    for entry in entries:
        pattern, _, names = entry.removeprefix("!").partition("::")
        files = list(covered.ROOT.glob(pattern))
        there = {
            one
            for path in files
            for node in ast.parse(path.read_text()).body
            for one in covered.names_of(node)
        }
        if not files or set(names.split()) - there:
            lost.append(entry)

    assert [] == lost


@pytest.mark.parametrize("name", sorted(json.loads(covered.TABLE.read_text())))
def test_a_change_to_any_symbol_is_noticed_and_a_move_is_none(name, tmp_path):
    """Names of modules, docstrings and who imports what are no part of it."""
    path, _ = max(covered.covered(name), key=lambda one: len(covered.said_in(*one)))
    copy = tmp_path / path.relative_to(covered.ROOT)
    copy.parent.mkdir(parents=True)
    text = path.read_text()
    copy.write_text(text)
    before = covered.digest(name, tmp_path)
    copy.write_text(f"{text}\n\nfrom gyre.types import errors as never_used\n")
    moved = covered.digest(name, tmp_path)
    copy.write_text(text.replace("return ", "return not ", 1))
    changed = covered.digest(name, tmp_path)

    assert before == moved != changed


def test_a_symbol_is_the_same_by_whichever_name_its_module_has(tmp_path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("def f():\n    return 1\n\nA = 'gyre.a.b'\n")
    two.write_text("'Other.'\n\nA = 'gyre.c'\n\ndef f():\n    'Other.'\n    return 1\n")

    assert sorted(covered.said_in(one)) == sorted(covered.said_in(two))
    assert (
        1 == len(covered.said_in(one, ({"f"}, set()))) == len(covered.said_in(one, (None, {"f"})))
    )


def test_a_digest_is_the_same_whichever_python_takes_it(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("class A:\n    def f(self, *, b=()) -> str:\n        return f'{b!r:>3}'\n")
    (said,) = covered.said_in(path)

    assert "1f2d61cd19cff707" == hashlib.sha256(said.encode()).hexdigest()[:16]
