"""Every format gives back the arrays that draw and row made."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from gyre.export import jsonl, parquet, safetensors_rows
from gyre.export.rows import Totals, drawn
from gyre.trajectory.loading import load
from gyre.trajectory.selection import generator, row, select_trajectories
from gyre.types.errors import LogDamaged

SETTINGS = {"format": 1, "seed": 5, "max_trajectories": 3}


@pytest.fixture
def paths(make_story, errand, tmp_path):
    """An execution of every kind of row, one whose versions are unknown, and one with no rows."""
    unknown = make_story(execution="unknown")
    one = unknown.call(1, 0, {"system": 4, "user": 2}, 3)
    unknown.call(2, one, {"tool": 2}, 3, version=None)
    empty = make_story(execution="empty")
    empty.call(1, 0, {"system": 4}, 3, logprobs=False)
    return sorted(history.write(tmp_path / "run") for history in (errand, unknown, empty))


def expected(paths, *, seed=5, most=3):
    """Rows as plain values, straight from the trees."""
    found = []
    for path in paths:
        tree, name = load(path).tree, path.stem
        for one in select_trajectories(tree, generator(seed, name), max_trajectories=most):
            each = row(tree, one)
            marked = [False] * len(each.ids)
            for position in each.targets:
                marked[position] = True
            found.append(
                {
                    "execution": name,
                    "leaf": each.leaf,
                    "role": each.role,
                    "ids": each.ids.tolist(),
                    "mask": marked,
                    "target_positions": each.targets.tolist(),
                    "logprobs": each.logprobs.tolist(),
                    "versions": None if each.versions is None else each.versions.tolist(),
                }
            )
    return found


def rows(paths):
    return drawn(paths, seed=5, max_trajectories=3)


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_parquet(path):
    return pq.read_table(path).to_pylist()


def read_safetensors(path):
    with safe_open(path, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["gyre"])

    def part(name, offsets, at):
        start, end = arrays[offsets][at : at + 2]
        return arrays[name][start:end].tolist()

    return [
        {
            "execution": about["executions"][arrays["execution"][at]],
            "leaf": int(arrays["leaf"][at]),
            "role": about["roles"][arrays["role"][at]],
            "ids": part("ids", "row_offsets", at),
            "mask": part("mask", "row_offsets", at),
            "target_positions": part("target_positions", "target_offsets", at),
            "logprobs": part("logprobs", "target_offsets", at),
            "versions": part("versions", "version_offsets", at) or None,
        }
        for at in range(len(arrays["leaf"]))
    ]


FORMATS = {
    "jsonl": (jsonl.write_rows, read_jsonl),
    "parquet": (parquet.write_rows, read_parquet),
    "safetensors": (safetensors_rows.write_rows, read_safetensors),
}


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_read_back_is_what_was_drawn(name, paths, tmp_path):
    write, read = FORMATS[name]
    write(tmp_path / "out", rows(paths), SETTINGS)
    found = expected(paths)

    assert found == read(tmp_path / "out")
    assert 4 == len(found)
    assert [True, False, False, False] == [one["versions"] is None for one in found]


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_logs_give_the_same_bytes(name, paths, tmp_path):
    write, _ = FORMATS[name]
    write(tmp_path / "one", rows(paths), SETTINGS)
    write(tmp_path / "two", rows(paths), SETTINGS)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("name", FORMATS)
def test_a_run_without_rows_is_a_file_without_rows(name, make_story, tmp_path):
    write, read = FORMATS[name]
    write(tmp_path / "out", rows([make_story().write(tmp_path / "run")]), SETTINGS)

    assert [] == read(tmp_path / "out")


@pytest.mark.parametrize("name", FORMATS)
def test_damage_found_on_the_way_leaves_nothing_open(name, paths, tmp_path):
    """A leaked file would fail the test as a warning, a leaked folder would be seen."""
    write, _ = FORMATS[name]
    paths[-1].write_bytes(b"not a log at all")
    with pytest.raises(LogDamaged, match="not a call log"):
        write(tmp_path / "out", rows(paths), SETTINGS)

    assert {"run", "out"} >= {path.name for path in tmp_path.iterdir()}


def test_files_say_how_their_rows_were_drawn(paths, tmp_path):
    parquet.write_rows(tmp_path / "a", rows(paths), SETTINGS)
    safetensors_rows.write_rows(tmp_path / "b", rows(paths), SETTINGS)
    with safe_open(tmp_path / "b", framework="np") as file:
        about = json.loads(file.metadata()["gyre"])

    assert SETTINGS == json.loads(pq.read_schema(tmp_path / "a").metadata[b"gyre"])
    assert SETTINGS == {name: about[name] for name in SETTINGS}
    assert ["empty", "unknown", "x"] == about["executions"]


def test_flat_arrays_are_aligned_and_typed_as_described(paths, tmp_path):
    safetensors_rows.write_rows(tmp_path / "out", rows(paths), SETTINGS)
    data = (tmp_path / "out").read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    widths = {"I64": 8, "I32": 4, "F32": 4, "U8": 1, "BOOL": 1}
    described = {
        name: kind
        for name, kind in (
            line.split()[:2] for line in safetensors_rows.__doc__.splitlines() if "[" in line
        )
        if name in safetensors_rows.ARRAYS
    }

    assert 0 == size % 8
    for name in safetensors_rows.ARRAYS:
        assert 0 == head[name]["data_offsets"][0] % widths[head[name]["dtype"]]
        assert described[name].startswith(np.dtype(safetensors_rows.ARRAYS[name][1]).name)
    assert described.keys() == safetensors_rows.ARRAYS.keys()


def test_totals_count_what_passes(paths):
    totals = Totals()
    passed = list(totals.counted(rows(paths)))
    found = expected(paths)

    assert (3, 1, 4) == (totals.executions, totals.incomplete, totals.rows)
    assert sum(len(one["ids"]) for one in found) == totals.tokens
    assert sum(len(one["target_positions"]) for one in found) == totals.targets
    assert ["empty", "unknown", "x"] == [one.execution for one in passed]


def test_log_probabilities_survive_json_exactly(make_story, tmp_path):
    history = make_story()
    history.call(1, 0, {"user": 1}, 400)
    rng = np.random.default_rng(0)
    values = -np.exp(rng.normal(size=400) * 8).astype(np.float32)
    history.records[2] = replace(history.records[2], logprobs=values.tobytes())
    jsonl.write_rows(tmp_path / "out", rows([history.write(tmp_path)]), SETTINGS)
    (found,) = read_jsonl(tmp_path / "out")

    assert values.tobytes() == np.array(found["logprobs"], dtype=np.float32).tobytes()


def test_records_are_written_for_people(errand, tmp_path):
    path = errand.write(tmp_path / "run")
    many = jsonl.write_records(tmp_path / "out", [load(path)])
    found = read_jsonl(tmp_path / "out")
    opened, _, closed, delivered = found[:4]

    assert len(errand.records) == many == len(found)
    assert {"x"} == {one["execution"] for one in found}
    assert ("LogOpened", "no-such-model") == (opened["record"], opened["model"])
    assert set() == {"key_hash", "salt"} & opened.keys()
    assert ("CallDelivered", 1) == (delivered["record"], delivered["call"])
    assert [segment["label"] for segment in closed["inputs"]] == ["system", "user"]
    assert list(range(1000, 1100)) == closed["inputs"][0]["ids"]
    assert ("00" * 16, ["72" * 16]) == (closed["inputs"][0]["key"], closed["keys"])
    assert ([9], list(range(1120, 1150))) == (closed["prompt"], closed["output"])
    assert (30, -0.125) == (len(closed["logprobs"]), closed["logprobs"][0])
    assert [{"engine": "one", "version": 3, "tokens": 30}] == closed["spans"]
    assert ("Looking.", []) == (closed["message"]["text"], closed["message"]["calls"])


def test_a_record_without_log_probabilities_says_null(make_story, tmp_path):
    history = make_story()
    history.call(1, 0, {"user": 1}, 2, logprobs=False)
    jsonl.write_records(tmp_path / "out", [load(history.write(tmp_path))])

    assert None is read_jsonl(tmp_path / "out")[2]["logprobs"]
