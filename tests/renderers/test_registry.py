import json

import pytest
from tests.contracts.families import ADDED, GLM, LLAMA, VISION

from gyre.renderers.registry import load_renderer
from gyre.testing.tokenizer import CHATML, QWEN3, write_tokenizer
from gyre.types.errors import ConfigError


@pytest.mark.parametrize(
    ("folder", "added", "expected"),
    [
        ("Qwen3-8B", QWEN3, "qwen3 thinking=all"),
        ("Qwen3-0.6B", QWEN3, "qwen3 thinking=all"),
        ("PrimeIntellect/Qwen3-0.6B", QWEN3, "prime-qwen3 thinking=all"),
        ("GLM-5", GLM, "glm-5 thinking=all"),
        ("models--zai-org--GLM-4.5-Air/snapshots/0123abcd", GLM, "glm-4.5 thinking=all"),
        ("Qwen/Qwen3.5-0.8B", QWEN3 + VISION, "qwen3.5 thinking=all enable_thinking=false"),
        ("Qwen/Qwen3.5-4B", QWEN3 + VISION, "qwen3.5 thinking=all enable_thinking=true"),
        ("my-model", CHATML, "chatml"),
        ("my-model", QWEN3, "chatml"),
    ],
)
def test_the_folder_s_name_tells_the_family(tmp_path, folder, added, expected):
    path = write_tokenizer(tmp_path / folder, added)

    assert expected == load_renderer(str(path)).name
    assert expected == load_renderer(str(path / "tokenizer.json")).name


@pytest.mark.parametrize(
    ("model_type", "expected"), [("qwen3", "qwen3 thinking=all"), ("qwen3_moe", "chatml")]
)
def test_the_architecture_tells_it_where_all_of_it_share_a_template(tmp_path, model_type, expected):
    folder = write_tokenizer(tmp_path / "tuned")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))

    assert expected == load_renderer(str(folder)).name


@pytest.mark.parametrize("family", ["chatml", *ADDED])
def test_a_family_that_is_given_is_taken(tmp_path, family):
    folder = write_tokenizer(tmp_path / "Qwen3-8B", ADDED.get(family, QWEN3))

    assert family == load_renderer(str(folder), family=family).name.split()[0]


def test_settings_reach_the_renderer(tmp_path):
    folder = str(write_tokenizer(tmp_path / "Qwen3-8B"))
    one = load_renderer(folder, thinking="tool_cycle", enable_thinking=False)

    assert "qwen3 thinking=tool_cycle enable_thinking=false" == one.name
    assert "chatml enable_thinking=false" == (
        load_renderer(folder, family="chatml", enable_thinking=False).name
    )


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path):
    folder = str(write_tokenizer(tmp_path / "model"))

    with pytest.raises(ConfigError, match=r"family: unknown 'gemma4'; known: chatml, qwen3, "):
        load_renderer(folder, family="gemma4")


def test_a_model_of_no_known_family_is_refused_with_the_known_ones(tmp_path):
    folder = str(write_tokenizer(tmp_path / "model", LLAMA))

    with pytest.raises(
        ConfigError, match=r"model: its family is not known .* known: chatml, qwen3"
    ):
        load_renderer(folder)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"expected a folder with a tokenizer\.json"):
        load_renderer(str(tmp_path))
    with pytest.raises(ConfigError, match=r"nowhere: expected a folder with a tokenizer\.json"):
        load_renderer(str(tmp_path / "nowhere"))


def test_a_tiktoken_file_is_not_enough(tmp_path):
    (tmp_path / "tiktoken.model").write_bytes(b"")

    with pytest.raises(ConfigError, match=r"tiktoken\.model, but a tokenizer\.json is needed"):
        load_renderer(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_broken_config_is_named(tmp_path, text):
    folder = write_tokenizer(tmp_path / "tuned")
    (folder / "config.json").write_text(text)

    with pytest.raises(ConfigError, match=r"config\.json: expected a JSON object"):
        load_renderer(str(folder))


def test_chatml_forgets_no_thinking(tmp_path):
    folder = str(write_tokenizer(tmp_path / "tiny"))

    with pytest.raises(ConfigError, match="chatml keeps all thinking"):
        load_renderer(folder, thinking="tool_cycle")
