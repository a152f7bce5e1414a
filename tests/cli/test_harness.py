"""`gyre harness`: what is there, and requests that make no sense."""

import pytest
from tests.harnesses.support.installed import pretend_prepared

from gyre.harnesses.registry import PROGRAMS, locked_versions


def test_list_shows_every_locked_version_and_whether_it_is_there(gyre, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    there = pretend_prepared(PROGRAMS["codex"], tmp_path / ".cache/gyre/harnesses")
    done = gyre("harness", "list")
    rows = [line.split() for line in done.stdout.splitlines()]

    assert 0 == done.returncode
    assert [
        (one.name, version) for one in PROGRAMS.values() for version in locked_versions(one)
    ] == [(row[0], row[1]) for row in rows]
    assert ["codex", PROGRAMS["codex"].version, "pinned", "there", str(there)] in rows
    assert len(rows) - 1 == sum("missing" in row for row in rows)


def test_prepare_leaves_a_program_that_is_there(gyre, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    there = pretend_prepared(PROGRAMS["codex"], tmp_path / ".cache/gyre/harnesses")
    done = gyre("harness", "prepare", "codex")

    assert (0, f"codex {PROGRAMS['codex'].version}: in {there}\n") == (done.returncode, done.stdout)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["list", "codex"], "`list` takes no name, and shows all"),
        (["prepare"], "expected a name, as in `gyre harness prepare claude_code`"),
        (["prepare", "codex", "codecs"], "codecs: expected one of claude_code, codex, "),
        (["prepare", "codex@new"], "expected a version as in codex@"),
    ],
)
def test_what_makes_no_sense_is_refused(gyre, arguments, reason):
    done = gyre("harness", *arguments)

    assert 2 == done.returncode
    assert reason in done.stderr
