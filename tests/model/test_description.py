"""Configurations that can be built, and those that are refused with a reason."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.folders import SMALL

from gyre.model.hf_config import describe, read_description
from gyre.model.loader import new_network
from gyre.types.errors import ModelError

LLAMA = SMALL | {"model_type": "llama"}


def test_sizes_are_read_and_missing_ones_follow_from_the_others():
    given = {name: one for name, one in LLAMA.items() if name != "num_key_value_heads"}

    assert 4 == describe(given, where="x").fields["num_key_value_heads"]
    assert 2 == describe(LLAMA, where="x").fields["num_key_value_heads"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (10_000.0, "default")),
        ({"rope_theta": 5e5}, (5e5, "default")),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, (1e6, "default")),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, (5e5, "linear")),
    ],
)
def test_the_rotary_embedding_is_found_where_old_and_new_files_have_it(config, expected):
    rope = describe(LLAMA | config, where="x").fields["rope_parameters"]

    assert expected == (rope["rope_theta"], rope["rope_type"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt2"}, "model_type: expected one of llama, qwen2, qwen3"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "as a causal model"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": "64"}, "hidden_size: expected a positive whole number, found '64'"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": 33}, "hidden_size: expected a multiple of the 4 heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of the 4 heads"),
        ({"hidden_act": "gelu"}, "hidden_act: expected silu"),
        ({"eos_token_id": 96}, "eos_token_id: expected an id within the vocabulary"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id"),
        ({"pad_token_id": [1]}, "pad_token_id"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: expected a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false"),
        ({"use_sliding_window": True}, "use_sliding_window: expected full attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: expected plain weights"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor: expected a positive number"),
        ({"rope_parameters": 7}, "rope_parameters: expected an object"),
        ({"rope_theta": "big"}, "rope_theta"),
    ],
)
def test_what_cannot_be_computed_as_it_was_trained_is_refused(changes, reason):
    with pytest.raises(ModelError) as refused:
        describe(LLAMA | changes, where="here/config.json")

    assert reason in str(refused.value)
    assert str(refused.value).startswith("here/config.json: ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "found no such file"), ("{", "expected a JSON object"), ("[1]", "found a list")],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, text, reason):
    if text is not None:
        (tmp_path / "config.json").write_text(text)

    with pytest.raises(ModelError, match=reason) as refused:
        read_description(tmp_path)
    assert str(tmp_path / "config.json") in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = [*LLAMA, "head_dim", "rope_parameters", "rope_theta", "rope_scaling", "rms_norm_eps",
          "hidden_act", "tie_word_embeddings", "attention_bias", "layer_types", "pad_token_id",
          "architectures", "initializer_range", "torch_dtype", "auto_map"]  # fmt: skip


@given(name=st.sampled_from(FIELDS), value=JSON)
def test_whatever_a_field_holds_there_is_a_network_or_a_named_refusal(name, value):
    config = json.loads(json.dumps(LLAMA | {name: value}))
    try:
        hidden = new_network(describe(config, where="here"), seed=0).shape.hidden
    except ModelError as error:
        hidden = str(error).partition(": ")[0]

    assert hidden in (config["hidden_size"], "here")
