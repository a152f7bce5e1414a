"""Results of groups that run by hand: written when all is kept, and known to be stale."""

import json

import pytest
from tests.promises import Promises, digest_of, holding, newest

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


def test_a_digest_is_of_names_and_contents(tmp_path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("A = 1\n")
    before = digest_of([one])
    one.write_text("A = 2\n")
    changed = digest_of([one])
    one.rename(two)

    assert 3 == len({before, changed, digest_of([two])})
