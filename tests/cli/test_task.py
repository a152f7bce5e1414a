"""`gyre task check`: what is said of tasks that are sound, that pay for nothing, that break."""

import pytest

from gyre.cli.main import main

pytestmark = pytest.mark.slow
HALF = 'test -e half && echo 0.5 > "$GYRE_RESULTS/reward.txt"'
JUDGE = f'{HALF} || {{ test -e done && echo 1 || echo 0; }} > "$GYRE_RESULTS/reward.txt"'
ABOUT = "[metadata.rl]\nportable = true\n"


def harbor(folder, *, judge=JUDGE, about=ABOUT, **scripts):
    """A task folder in Harbor's format, with scripts in its solution by name."""
    files = {"task.toml": about, "instruction.md": "Do it.", "tests/test.sh": judge}
    files |= {f"solution/{name}.sh": script for name, script in scripts.items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def check(tasks, *options):
    return main(["task", "check", str(tasks), "--sandbox", "process", *options])


def test_a_sound_task_is_done_in_every_way_there_is(tmp_path, capsys):
    harbor(tmp_path / "one", solve="touch done", partial="touch half")

    assert 0 == check(tmp_path)
    assert (
        "one                             untouched 0  partial.sh 0.5  solve.sh 1\n1 task: sound\n"
    ) == capsys.readouterr().out


WRONG = {
    "untouched it pays": (
        {"judge": 'echo 0.25 > "$GYRE_RESULTS/reward.txt"'},
        ["untouched: expected 0, found 0.25", "baseline"],
    ),
    "its solution does not solve it": (
        {"solve": "touch half"},
        ["solve.sh: expected 1, found 0.5"],
    ),
    "its solution breaks": (
        {"solve": "echo no such thing; exit 3"},
        ["solve.sh: crashed: exit status 3", "| no such thing"],
    ),
    "its judge breaks": (
        {"judge": "echo lost my way; exit 7"},
        ["untouched -", "no score", "status 7", "| lost my way"],
    ),
    "what it prints would steer a terminal": (
        {"solve": r"printf '\033[2Jgone\n'; exit 3"},
        ["| ·[2Jgone"],
    ),
    "its judge cannot tell": (
        {"judge": 'echo -1 > "$GYRE_RESULTS/reward.txt"'},
        ["untouched -", "no score"],
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_with_what_was_printed_last(what, tmp_path, capsys):
    settings, expected = WRONG[what]
    harbor(tmp_path / "one", **{"solve": "touch done"} | settings)

    assert 1 == check(tmp_path)
    said = capsys.readouterr().out
    assert [] == [part for part in expected if part not in said], said
    assert said.endswith("1 task: 1 to be mended\n")


def test_steps_are_done_by_scripts_of_the_same_name(tmp_path, capsys):
    steps = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("first", "second"))
    for name in ("first", "second"):
        step = tmp_path / "one" / "steps" / name
        harbor(step, judge=JUDGE.replace("done", name), solve=f"touch {name}")
        (step / "task.toml").unlink()
    (tmp_path / "one" / "task.toml").write_text(steps + ABOUT)
    (tmp_path / "one" / "steps" / "first" / "solution" / "begun.sh").write_text("touch first")

    assert 0 == check(tmp_path)
    assert "untouched 0  begun.sh 0.5  solve.sh 1\n" in capsys.readouterr().out


def test_tasks_without_a_solution_and_for_a_judge_are_said_to_be_so(tmp_path, capsys):
    (tmp_path / "tasks.jsonl").write_text(
        '{"id": "bare", "instruction": "Do.", "evaluation": {"argv": ["false"], '
        '"score": "exit-status"}}\n'
        '{"id": "judged", "instruction": "Do.", "evaluation": {"rubric": {"text": "Good?"}}}\n'
    )

    assert 0 == check(tmp_path / "tasks.jsonl")
    said = capsys.readouterr().out
    assert "judged                          has a rubric for a judge: not tried\n" in said
    assert "1 task without a solution, so nobody knows what the most is\n" in said


def test_tasks_that_cannot_be_read_are_refused(tmp_path, capsys):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "task.toml").write_text("instruction = 3\n")

    assert 2 == check(tmp_path)
    assert "one/task.toml" in capsys.readouterr().err
