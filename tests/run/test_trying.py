"""What is said of a way of doing a task that did not come to what it should."""

from gyre.run.supervise import LOG_FILE
from gyre.run.trying import JUDGED_FILE, OUTPUT_FILE, SAID_LINES, _said


def test_the_end_of_what_the_judge_printed_is_said(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / JUDGED_FILE).write_text("\n".join(f"line {n}" for n in range(999)))
    (tmp_path / LOG_FILE).write_text("supervised\n")

    assert tuple(f"line {n}" for n in range(999 - SAID_LINES, 999)) == _said(tmp_path)


def test_what_a_program_linked_in_its_place_is_not_read(tmp_path):
    (tmp_path / "secret").write_text("secret\n")
    inside = tmp_path / "try"
    (inside / "workspace").mkdir(parents=True)
    (inside / "workspace" / JUDGED_FILE).symlink_to(tmp_path / "secret")
    (inside / "workspace" / OUTPUT_FILE).symlink_to("/dev/zero")
    (inside / LOG_FILE).write_text("supervised\n")

    assert ("supervised",) == _said(inside)
