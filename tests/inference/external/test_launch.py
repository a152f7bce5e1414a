"""How servers are started: what they are told, and what they are told where nobody reads it."""

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gyre.config.sections import EngineConfig, ServerConfig
from gyre.inference.external import process
from gyre.types.errors import ConfigError


@pytest.fixture
def wanted(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return process.ServerSettings(
        model=Path("/models/m"),
        version=4,
        dtype="bfloat16",
        device="cuda:1",
        seed=9,
        kv_token_bytes=1000,
        engine=EngineConfig(capacity=6, kv_tokens=64, prefill_tokens=32, block_tokens=16),
        server=ServerConfig(args=("--last", "word"), env={"A": "b"}),
        folder=tmp_path,
        python=sys.executable,
    )


def told(command):
    """Options by name; the last of a kind counts."""
    words = zip(command, [*command[1:], ""], strict=True)
    return {name: value for name, value in words if name.startswith("--")}


def test_vllm_is_told_what_the_sections_say_and_listens_where_only_this_user_can(wanted):
    found = process.vllm(wanted)
    options = told(found.command)

    assert (sys.executable, "-m") == found.command[:2]
    assert ("--last", "word") == found.command[-2:]
    assert {
        "--model": "/models/m",
        "--uds": str(wanted.folder / "vllm"),
        "--dtype": "bfloat16",
        "--seed": "9",
        "--max-num-seqs": "6",
        "--max-num-batched-tokens": "32",
        "--block-size": "16",
        "--kv-cache-memory-bytes": "64000",
        "--logprobs-mode": "processed_logprobs",
    }.items() <= options.items()
    assert "--enable-sleep-mode" in options
    assert "--host" not in options
    assert ("1", "b") == (found.variables["CUDA_VISIBLE_DEVICES"], found.variables["A"])


def test_sglang_has_its_key_in_a_file_and_not_in_its_command(wanted):
    found = process.sglang(wanted, port=1234, key='se"cret')
    file = wanted.folder / "sglang.yaml"
    options = told(found.command)

    assert 'api-key: "se\\"cret"\nport: 1234\n' == file.read_text()
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert not any("cret" in word for word in found.command)
    assert {
        "--host": "127.0.0.1",
        "--model-path": "/models/m",
        "--weight-version": "4",
        "--random-seed": "9",
        "--max-running-requests": "6",
        "--max-total-tokens": "64",
        "--page-size": "16",
    }.items() <= options.items()
    assert {"--enable-memory-saver", "--enable-weights-cpu-backup"} <= options.keys()


def test_on_a_cpu_no_memory_is_promised_back(wanted):
    on_cpu = replace(wanted, device="cpu")
    options = told(process.vllm(on_cpu).command) | told(
        process.sglang(on_cpu, port=1, key="k").command
    )

    assert not {"--enable-sleep-mode", "--enable-memory-saver"} & options.keys()
    assert "cpu" == options["--device"]


def test_vllm_finds_the_plug_in_for_weights_by_itself(wanted):
    found = process.vllm(replace(wanted, server=ServerConfig(env={"PYTHONPATH": "/mine"})))
    place, *others = found.variables["PYTHONPATH"].split(":")
    (about,) = Path(place).glob("*.dist-info")

    assert ["/mine"] == others
    assert '{"backend": "gyre"}' == told(found.command)["--weight-transfer-config"]
    assert "gyre = gyre_vllm_weights:register" in (about / "entry_points.txt").read_text()
    assert "def register()" in (Path(place) / "gyre_vllm_weights.py").read_text()


def test_sglang_finds_no_packages_of_this_process(wanted):
    here = process.sglang(wanted, port=1, key="k")
    named = replace(wanted, server=ServerConfig(env={"PYTHONPATH": "/mine"}))

    assert "" == here.variables["PYTHONPATH"]
    assert "/mine" == process.sglang(named, port=1, key="k").variables["PYTHONPATH"]


def test_another_environment_is_named_by_its_interpreter(wanted, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").touch()
    server = ServerConfig(python="~/python")

    assert str(tmp_path / "python") == process.vllm(replace(wanted, server=server)).command[0]


def test_an_interpreter_that_is_not_there_is_named(wanted):
    server = ServerConfig(python="/no/such/python")
    with pytest.raises(ConfigError, match=r"cells\.server\.python: .*no file /no/such/python"):
        process.sglang(replace(wanted, server=server), port=1, key="k")


@pytest.mark.parametrize(
    ("seen", "device", "told"),
    [("4,5", "cuda:1", "5"), ("GPU-a, GPU-b", "cuda:1", "GPU-b"), ("", "cuda:1", "1")],
)
def test_a_server_is_on_the_device_that_the_number_names_in_this_process(
    wanted, monkeypatch, seen, device, told
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)

    found = process.vllm(replace(wanted, device=device))

    assert told == found.variables["CUDA_VISIBLE_DEVICES"]


def test_a_server_without_a_number_sees_what_this_process_sees(wanted):
    assert "CUDA_VISIBLE_DEVICES" not in process.vllm(replace(wanted, device="cuda")).variables
