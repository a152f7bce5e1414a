"""`gyre serve` as a command: what it refuses before it listens, its help and its page."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.inference.support import serving, slow_engine
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return serving.write_model(tmp_path_factory.mktemp("model"), slow_engine.network())


WRONG = [
    (["--device", "abacus"], "device: expected cpu, cuda or cuda:N, found 'abacus'"),
    (["--device", "meta"], "device: expected cpu or one of"),
    (["--capacity", "0"], "engine.capacity: expected 1 or more, found 0"),
    (["--kv-tokens", "3"], "engine.kv_tokens: expected a block of 16, found 3"),
    (["--port", "70000"], "cannot listen on 127.0.0.1:70000"),
    (["--host", "nowhere.invalid"], "--host nowhere.invalid: expected --api-key-file too"),
    (["--host", "nowhere.invalid", "--api-key-file", __file__], "cannot listen on nowhere.invalid"),
    (["--api-key-file", "nowhere"], "nowhere: expected a file with a key"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[" ".join(one) for one, _ in WRONG])
def test_what_cannot_be_is_one_line_and_status_2(gyre, folder, options, said):
    done = gyre("serve", folder, "--port", 0, "--device", "cpu", *options)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("gyre serve: ")
    assert 1 == done.stderr.count("\n")
    assert said in done.stderr


def test_a_model_that_cannot_be_used_is_named(gyre, tmp_path):
    nothing = gyre("serve", tmp_path / "nowhere", "--port", 0)
    broken = serving.write_model(tmp_path / "broken", slow_engine.network())
    (broken / "model.safetensors").write_bytes(b"nothing")
    weights = gyre("serve", broken, "--port", 0)
    (broken / "tokenizer.json").write_text('{"model": 3}')
    tokens = gyre("serve", broken, "--port", 0)

    assert [2, 2, 2] == [one.returncode for one in (nothing, weights, tokens)]
    assert "expected tiny, smollm2 or a folder" in nothing.stderr
    assert "expected a whole safetensors file" in weights.stderr
    assert "tokenizer.json: expected a tokenizer with a vocabulary" in tokens.stderr


def test_an_empty_key_opens_nothing(gyre, folder, tmp_path):
    (tmp_path / "key").write_text("\n")
    done = gyre("serve", folder, "--port", 0, "--api-key-file", tmp_path / "key")

    assert (2, "") == (done.returncode, done.stdout)
    assert "expected a key" in done.stderr


def test_a_port_that_is_taken_is_said_before_weights_are_read(gyre, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = gyre("serve", tmp_path / "nowhere", "--port", port)

    assert 2 == done.returncode
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_without_torch_it_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; from gyre.cli.main import main; "
    code += "sys.exit(main(['serve', 'tiny', '--port', '0']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    hint = "gyre serve: the embedded engine needs torch: pip install 'gyre-rl[torch]'\n"

    assert (2, "", hint) == (done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_when_told(folder, number):
    command = [sys.executable, "-W", "error", "-m", "gyre", "serve", str(folder), "--port", "0"]
    child = subprocess.Popen(
        [*command, "--device", "cpu", "--seed", "9", "--kv-tokens", "320"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    with child:
        first, second = child.stdout.readline(), child.stdout.readline()
        child.send_signal(number)
        rest, wrong = child.communicate(timeout=PATIENCE_S)

    assert re.fullmatch(
        rf"gyre serve: http://127\.0\.0\.1:\d+  model {folder}  weights 0  context 160  "
        r"cache 320 tokens  seed 9\n",
        first,
    )
    assert ("ready\n", "", "", 0) == (second, rest, wrong, child.returncode)
