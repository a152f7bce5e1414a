"""What is said of a way of doing a task that did not come to what it should."""

import errno
import os

from gyre.evals.task_check import JUDGED_FILE, OUTPUT_FILE, SAID_LINES, _said
from gyre.rollout.main import LOG_FILE


def test_the_end_of_what_the_judge_printed_is_said(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / JUDGED_FILE).write_text("\n".join(f"line {n}" for n in range(999)))
    (tmp_path / LOG_FILE).write_text("supervised\n")

    assert tuple(f"line {n}" for n in range(999 - SAID_LINES, 999)) == _said(tmp_path)


def test_what_a_program_has_shut_is_passed_over(tmp_path, monkeypatch):
    """Whoever tries a task may not be root, and a judge's folder is then as shut as it looks."""
    (tmp_path / "x").mkdir()
    (tmp_path / JUDGED_FILE).write_text("judged\n")
    (tmp_path / LOG_FILE).write_text("supervised\n")
    shut, opened = (tmp_path / "x").stat().st_ino, os.open

    def as_others(path, flags, mode=0o777, *, dir_fd=None):
        found = opened(path, flags, mode, dir_fd=dir_fd)
        if os.fstat(found).st_ino == shut or path == JUDGED_FILE:
            os.close(found)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return found

    monkeypatch.setattr(os, "open", as_others)

    assert ("supervised",) == _said(tmp_path)


def test_what_a_program_linked_in_its_place_is_not_read(tmp_path):
    (tmp_path / "secret").write_text("secret\n")
    inside = tmp_path / "try"
    (inside / "workspace").mkdir(parents=True)
    (inside / "workspace" / JUDGED_FILE).symlink_to(tmp_path / "secret")
    (inside / "workspace" / OUTPUT_FILE).symlink_to("/dev/zero")
    (inside / LOG_FILE).write_text("supervised\n")

    assert ("supervised",) == _said(inside)
