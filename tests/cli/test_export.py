"""`gyre export`: the file it writes, what it says, and that nothing half is left."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from gyre.controller.executions.held_out_eval import name_of
from gyre.scheduler.messages import EvaluationId
from gyre.storage.call_log import CallLog
from gyre.types.call_records import CallOpened
from gyre.types.ids import CallId

NO_PYARROW = """
import sys
sys.modules["pyarrow"] = None
from gyre.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_go_to_the_run_folder_unless_told_otherwise(gyre, folder, tmp_path):
    one = gyre("export", folder, "--format", "jsonl")
    two = gyre("export", folder, "--format", "jsonl", "--out", tmp_path / "mine.jsonl")
    rows = lines(folder / "rows.jsonl")
    counts = f"4 rows of 2 executions, {sum(len(row['ids']) for row in rows)} tokens, 22 targets"

    assert (0, f"{folder}/rows.jsonl: {counts}\n", "") == (one.returncode, one.stdout, one.stderr)
    assert f"{tmp_path}/mine.jsonl: {counts}\n" == two.stdout
    assert rows == lines(tmp_path / "mine.jsonl")
    assert ["one", "one", "two", "two"] == [row["execution"] for row in rows]


def test_a_single_log_has_its_rows_beside_it(gyre, folder):
    path = folder / "executions" / "one.calls"

    assert "2 rows of 1 execution, " in gyre("export", path, "--format", "jsonl").stdout
    assert 2 == len(lines(path.with_name("one.rows.jsonl")))


def test_held_out_evaluations_are_no_rows_unless_asked_for(gyre, folder, tmp_path):
    """SPEC 6.6: nothing is trained on them; their calls are exported like all others."""
    logs = folder / "executions"
    (logs / "two.calls").rename(logs / f"{name_of(EvaluationId(2))}.calls")

    def exported(*options):
        gyre("export", folder, "--format", "jsonl", "--out", tmp_path / "out", *options)
        return len(lines(tmp_path / "out"))

    assert (2, 4) == (exported(), exported("--held-out"))
    assert 2 == exported("--execution", name_of(EvaluationId(2)))
    assert "2 executions" in gyre("export", folder, "--format", "calls").stdout


def test_the_draw_can_be_limited_and_seeded(gyre, folder, tmp_path):
    def exported(*options):
        out = tmp_path / "out.jsonl"
        assert 0 == gyre("export", folder, "--format", "jsonl", "--out", out, *options).returncode
        return [(row["execution"], row["leaf"]) for row in lines(out)]

    assert [("two", 2), ("two", 3)] == sorted(exported("--execution", "two"))
    assert 2 == len(exported("--max-trajectories", "1"))
    assert 4 == len(exported("--max-trajectories", "all"))
    drawn = {tuple(exported("--max-trajectories", "1", "--seed", seed)) for seed in range(6)}
    assert 1 < len(drawn)


@pytest.mark.parametrize("name", ["jsonl", "parquet", "safetensors", "calls"])
def test_every_format_is_written_and_is_the_same_the_second_time(gyre, folder, tmp_path, name):
    for out in ("a", "b"):
        done = gyre("export", folder, "--format", name, "--out", tmp_path / out)
        assert (0, "") == (done.returncode, done.stderr)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert {"run", "a", "b"} == {path.name for path in tmp_path.iterdir()}


def test_tables_and_arrays_say_how_they_were_drawn(gyre, folder):
    options = ("--seed", "7", "--max-trajectories", "all")
    gyre("export", folder, "--format", "parquet", *options)
    gyre("export", folder, "--format", "safetensors", *options)
    with safe_open(folder / "rows.safetensors", framework="np") as file:
        about = json.loads(file.metadata()["gyre"])
    expected = {"format": 1, "seed": 7, "max_trajectories": None}

    assert expected == json.loads(pq.read_schema(folder / "rows.parquet").metadata[b"gyre"])
    assert expected == {key: about[key] for key in expected}


def test_records_are_a_format_too(gyre, folder):
    done = gyre("export", folder, "--format", "calls")
    records = lines(folder / "calls.jsonl")

    assert f"{folder}/calls.jsonl: 14 records of 2 executions\n" == done.stdout
    assert ["LogOpened", "CallClosed", "CallDelivered"] == [one["record"] for one in records[:3]]


@pytest.mark.parametrize("name", ["jsonl", "calls"])
def test_lines_can_be_printed(gyre, folder, name):
    gyre("export", folder, "--format", name)
    done = gyre("export", folder, "--format", name, "--out", "-")
    file = folder / ("calls.jsonl" if name == "calls" else "rows.jsonl")

    assert file.read_text() == done.stdout
    assert "of 2 executions" in done.stderr


def test_damage_leaves_the_old_file_and_nothing_else(gyre, damaged):
    (damaged / "rows.jsonl").write_text("old")
    before = sorted(damaged.rglob("*"))
    for name in ("jsonl", "parquet", "safetensors", "calls"):
        done = gyre("export", damaged, "--format", name)
        assert (2, "") == (done.returncode, done.stdout)
        assert done.stderr.startswith(f"gyre export: {damaged}/executions/two.calls: damaged at")
        assert 1 == done.stderr.count("\n")

    assert "" == gyre("export", damaged, "--format", "jsonl", "--out", "-").stdout
    assert "old" == (damaged / "rows.jsonl").read_text()
    assert before == sorted(damaged.rglob("*"))


def test_the_sound_executions_of_a_damaged_run_can_be_had_one_by_one(gyre, damaged):
    assert 0 == gyre("export", damaged, "--format", "jsonl", "--execution", "one").returncode
    assert 2 == len(lines(damaged / "rows.jsonl"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--format", "parquet", "--out", "-"], "--out -: parquet needs a file"),
        (["--format", "jsonl", "--out", "."], ".: expected a file, found a folder"),
        (["--format", "jsonl", "--out", "no/rows"], "no/rows: cannot be written: No such file"),
        (["--format", "jsonl", "--execution", "three"], "run: no execution three; it has one, two"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(gyre, folder, monkeypatch, options, expected):
    monkeypatch.chdir(folder.parent)
    done = gyre("export", "run", *options)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(f"gyre export: {expected}")
    assert 1 == done.stderr.count("\n")


def test_an_execution_whose_end_is_unknown_is_counted(gyre, folder):
    """M21: what was accepted and never ended is said, not hidden."""
    path = folder / "executions" / "one.calls"
    log = CallLog(path, sound_bytes=path.stat().st_size)
    log.append(CallOpened(call=CallId(4), at=1.0, dialect="chat", num_messages=1, prompt_tokens=1))
    log.close()

    assert gyre("export", folder, "--format", "jsonl").stdout.endswith(" targets; 1 incomplete\n")


@pytest.mark.parametrize("number", ["0", "-3", "some"])
def test_a_number_of_trajectories_is_one_or_more_or_all(gyre, folder, number):
    done = gyre("export", folder, "--format", "jsonl", f"--max-trajectories={number}")

    assert 2 == done.returncode
    assert f"expected a number of 1 or more, or all; found '{number}'" in done.stderr


def test_without_pyarrow_parquet_says_what_to_install(folder):
    command = [sys.executable, "-c", NO_PYARROW, "export", str(folder), "--format"]
    refused = subprocess.run([*command, "parquet"], capture_output=True, text=True)
    other = subprocess.run([*command, "safetensors"], capture_output=True)

    expected = "gyre export: parquet needs pyarrow: pip install 'gyre-rl[parquet]'\n"
    assert (2, expected) == (refused.returncode, refused.stderr)
    assert 0 == other.returncode
    assert not (folder / "rows.parquet").exists()
