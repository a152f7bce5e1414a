"""examples/recording for real: engine, proxy and agents as processes, and what they leave."""

import json
import subprocess
import sys

import pytest
from examples.recording.agent_script import ANSWER, DONE
from tests.docs.support.pages import ROOT
from tests.waiting import PATIENCE_S

from gyre.trajectory.loading import find, load
from gyre.trajectory.selection import generator, row, select_trajectories

pytestmark = pytest.mark.slow

RECORD = ROOT / "examples" / "recording" / "record.py"
EXECUTIONS = ("attempt-1", "attempt-2")
SHAPE = [
    # call, parent, role, agent, fork
    (1, None, "main", None, None),
    (2, 1, "main", None, None),
    (3, None, "sub-agent", "reader-1", "new-root"),
    (4, 3, "sub-agent", "reader-1", None),
    (5, 2, "main", None, None),
    (6, 5, "main-summary", None, None),
    (7, None, "main", None, "new-conversation"),
    (8, 7, "main", None, None),
]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The folder that it made, and what it printed."""
    folder = tmp_path_factory.mktemp("recording") / "kept"
    command = [sys.executable, str(RECORD), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)

    assert (0, "") == (done.returncode, done.stderr)
    return folder, done.stdout


def loaded(folder):
    return [load(path) for path in find(folder / "run")]


def test_it_tells_what_happens_and_shows_the_trees(shown):
    folder, said = shown

    assert list(EXECUTIONS) == [
        line.split()[1] for line in said.splitlines() if line.startswith("execution ")
    ]
    for name in EXECUTIONS:
        assert f"{name}  main: {DONE}" in said
        assert f"{name}  main: has summarised its history" in said
    assert f"$ gyre inspect {folder}/run --leaves\n" in said
    assert 2 == said.count("└─● 3-4       sub-agent     reader-1")
    assert 2 == said.count("new-conversation\n")
    assert f"{folder}/rows.jsonl: 8 rows of 2 executions, " in said


def test_each_execution_is_the_same_shape_complete_and_sealed(shown):
    folder, _ = shown
    for one in loaded(folder):
        nodes = one.tree.calls.values()

        assert SHAPE == [(n.id, n.parent, n.role, n.agent, n.fork) for n in nodes]
        assert [] == [node.id for node in nodes if node.committed is None or node.flags]
        assert (True, True) == (one.tree.is_complete, one.tree.sealed_at is not None)


def test_stored_prompts_are_what_the_engine_was_sent(shown):
    folder, _ = shown
    with (folder / "asks.jsonl").open() as asks:
        sent = sorted(json.loads(line)["input_ids"] for line in asks)
    stored = sorted(
        one.tree.prompt_ids(call).tolist() for one in loaded(folder) for call in one.tree.calls
    )

    assert 16 == len(sent)
    assert sent == stored


def test_the_exported_rows_are_those_of_the_trees(shown):
    folder, _ = shown
    found = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    expected = [
        (one.execution, row(one.tree, each))
        for one in loaded(folder)
        for each in select_trajectories(one.tree, generator(0, one.execution))
    ]

    assert 8 == len(found)
    for line, (execution, each) in zip(found, expected, strict=True):
        assert (execution, each.leaf, each.role) == (line["execution"], line["leaf"], line["role"])
        assert each.ids.tolist() == line["ids"]
        assert each.targets.tolist() == line["target_positions"]
        assert each.logprobs.tolist() == line["logprobs"]
        assert [0] * len(each.targets) == line["versions"]
        assert each.targets.tolist() == [
            at for at, is_target in enumerate(line["mask"]) if is_target
        ]


def test_the_agents_did_real_work(shown):
    """The counts are of the notes in each folder, which no script knows."""
    folder, _ = shown
    for name in EXECUTIONS:
        notes = {path.name: path.read_text() for path in (folder / name).glob("note-*.txt")}
        counts = sorted(((len(text.split()), note) for note, text in notes.items()), reverse=True)
        report = (folder / name / "report.txt").read_text().splitlines()

        assert [f"{count} {note}" for count, note in counts] == [
            line.strip() for line in report[:2]
        ]
        assert ANSWER == report[2]
        assert not (folder / name / "about.txt").exists()


def test_no_secret_is_left_behind(shown):
    folder, said = shown
    logs = b"".join(path.read_bytes() for path in find(folder / "run"))

    assert b"gyre-" not in logs
    assert "key" not in said


def test_a_folder_that_exists_is_not_touched(tmp_path):
    done = subprocess.run([sys.executable, str(RECORD), tmp_path], capture_output=True, text=True)

    assert (1, "") == (done.returncode, done.stdout)
    assert "usage: record.py FOLDER, a folder that does not exist yet\n" == done.stderr
    assert [] == list(tmp_path.iterdir())
