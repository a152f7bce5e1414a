"""Configurations that can be built, and those that are refused with a reason."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.model.support.folders import SMALL

from gyre.model.hf_config import describe, read_description
from gyre.model.loader import new_network
from gyre.types.errors import ModelError

LLAMA = SMALL | {"model_type": "llama"}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}
YARN_OPTIONS = {
    "beta_fast": 32,
    "beta_slow": 1,
    "attention_factor": 1,
    "mscale": 1,
    "mscale_all_dim": 1,
}


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


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "config",
    [
        {"rms_norm_eps": 1},
        {"rope_theta": 500_000},
        {"rope_theta": 500_000, "partial_rotary_factor": 1, "attention_dropout": 0},
        {"initializer_range": 1},
        {"rope_parameters": {"rope_theta": 500_000, "rope_type": "linear", "factor": 2}},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": YARN | YARN_OPTIONS},
    ],
    ids=str,
)
def test_a_whole_number_stands_for_the_number_that_it_is(model_type, config):
    given = SMALL | {"model_type": model_type, "head_dim": 8}
    whole = new_network(describe(given | config, where="x"), seed=0)
    broken = new_network(describe(given | with_points(config), where="x"), seed=0)

    assert whole.module.config.to_dict() == broken.module.config.to_dict()
    rope, eps = whole.module.config.rope_parameters, whole.module.config.rms_norm_eps
    wanted = {"original_max_position_embeddings": int, "rope_type": str}
    assert {name: wanted.get(name, float) for name in rope} == {
        name: type(one) for name, one in rope.items()
    }
    assert isinstance(eps, float)


def with_points(value):
    """Whole numbers as they are written with a point, but for counts of tokens."""
    if isinstance(value, dict):
        return {
            name: one if name == "original_max_position_embeddings" else with_points(one)
            for name, one in value.items()
        }
    return float(value) if isinstance(value, int) else value


def test_bounds_of_yarn_are_rounded_unless_the_file_says_otherwise():
    def angles(**options):
        rope = {"rope_scaling": YARN | options, "head_dim": 32}
        network = new_network(describe(LLAMA | rope, where="x"), seed=0)
        return network.decoder.rotary_emb.inv_freq.tolist()

    assert angles() == angles(truncate=True)
    assert angles() != angles(truncate=False)


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
        ({"head_dim": 7}, "head_dim: expected an even number, found 7"),
        ({"hidden_size": 36}, "hidden_size: expected an even number for each of the 4 heads"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: expected a positive number"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps: expected a positive number, found '1e-5'"),
        ({"rms_norm_eps": True}, "rms_norm_eps: expected a positive number, found True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: expected a positive number, found nan"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false"),
        ({"use_sliding_window": True}, "use_sliding_window: expected full attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: expected plain weights"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor: expected a positive number"),
        ({"rope_parameters": 7}, "rope_parameters: expected an object"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_scaling": YARN | {"beta_fast": [1]}}, "beta_fast: expected a positive number"),
        ({"rope_scaling": YARN | {"truncate": 0}}, "truncate: expected true or false, found 0"),
        (
            {"rope_scaling": YARN | {"original_max_position_embeddings": 64.5}},
            "original_max_position_embeddings: expected a positive whole number, found 64.5",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1, all of a head"),
        ({"rope_parameters": {"partial_rotary_factor": "all"}}, "partial_rotary_factor"),
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
ROPE = ["rope_type", "rope_theta", "partial_rotary_factor", "truncate", *LLAMA3, *YARN_OPTIONS]
FIELDS = [*LLAMA, "head_dim", "partial_rotary_factor", "attention_dropout",
          "rope_parameters", "rope_theta", "rope_scaling", "rms_norm_eps",
          "hidden_act", "tie_word_embeddings", "attention_bias", "layer_types", "pad_token_id",
          "architectures", "initializer_range", "torch_dtype", "auto_map"]  # fmt: skip


@given(name=st.sampled_from(FIELDS), value=JSON)
@example(name="rms_norm_eps", value=1)
@example(name="rms_norm_eps", value="1")
@example(name="rope_theta", value=1)
@example(name="initializer_range", value=1)
@example(name="partial_rotary_factor", value=1)
@example(name="attention_dropout", value=1)
@example(name="head_dim", value=1)
@example(name="head_dim", value=7)
def test_whatever_a_field_holds_there_is_a_network_or_a_named_refusal(name, value):
    config = json.loads(json.dumps(LLAMA | {name: value}))
    try:
        hidden = new_network(describe(config, where="here"), seed=0).shape.hidden
    except ModelError as error:
        hidden = str(error).partition(": ")[0]

    assert hidden in (config["hidden_size"], "here")


@given(
    kind=st.sampled_from(["default", "linear", "llama3", "yarn"]),
    name=st.sampled_from(ROPE),
    value=st.integers(-3, 200) | st.floats() | JSON,
)
@example(kind="yarn", name="rope_theta", value=1)
@example(kind="yarn", name="beta_fast", value=1)
@example(kind="llama3", name="high_freq_factor", value=1)
def test_whatever_the_rotary_embedding_holds_there_is_a_network_or_a_named_refusal(
    kind, name, value
):
    rope = {"rope_theta": 10_000} | LLAMA3 | YARN_OPTIONS | {"rope_type": kind, name: value}
    try:
        described = describe(LLAMA | {"rope_parameters": rope}, where="here")
        hidden = new_network(described, seed=0).shape.hidden
    except ModelError as error:
        hidden = str(error).partition(": ")[0]

    assert hidden in (LLAMA["hidden_size"], "here")
