import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.renderers.tokenizer import MARK, PackageTokenizer, encodable
from gyre.testing.tokenizer import CHATML, QWEN3, tokenizer, tokenizer_json, write_tokenizer
from gyre.types.errors import ConfigError

TOKENS = PackageTokenizer(tokenizer_json(), name="test")
ADDED = set(TOKENS.added.values())
FRAGMENTS = [*QWEN3, "<|im", "_end|>", "<", "|", ">", "think", MARK, "\ufdd1", "\\ufdd0", "\ud83d"]
hostile = st.lists(st.sampled_from([*FRAGMENTS, "\x00", " word", "\n\n", "!", "日本"])).map("".join)


def changed(**added):
    """The test tokenizer with one more added token of these settings."""
    data = json.loads(tokenizer_json(CHATML))
    number = 1 + max(one["id"] for one in data["added_tokens"])
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)
    data["added_tokens"].append({"id": number, **flags, **added})
    return data


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_without_marks_gets_the_tokenizer_s_own_ids(text):
    spelled = f"<|im_start|>user\n{text}<|im_end|>"

    assert tokenizer().encode(spelled, add_special_tokens=False).ids == TOKENS.encode(spelled)


@given(hostile)
def test_outside_text_never_yields_an_added_id(text):
    """T23: and it decodes to what it was, lone surrogates aside."""
    ids = TOKENS.plain(text)

    assert set() == ADDED & set(ids)
    assert encodable(text) == TOKENS.decode(ids)
    assert ids == TOKENS.encode(TOKENS.mark(text))


@given(hostile)
def test_a_template_around_marked_text_keeps_its_special_ids(text):
    ids = TOKENS.encode(f"<|im_start|>user\n{TOKENS.mark(text)}<|im_end|>\n<think>")
    special = [token for token in ids if token in ADDED]

    assert [TOKENS.added[one] for one in ("<|im_start|>", "<|im_end|>", "<think>")] == special
    assert f"<|im_start|>user\n{encodable(text)}<|im_end|>\n<think>" == TOKENS.decode(ids)


@given(
    st.lists(st.sampled_from(["<|im_start|>", "<think>", " word", "\n", "é"])), st.integers(0, 9)
)
def test_a_mark_that_says_nothing_changes_no_ids(pieces, at):
    marked = "".join([*pieces[:at], MARK, *pieces[at:]])

    assert TOKENS.encode("".join(pieces)) == TOKENS.encode(marked)


def test_tokens_that_are_not_special_are_guarded_too():
    assert "<tool_call>" in TOKENS.added
    assert 1 < len(TOKENS.plain("<tool_call>"))
    assert [TOKENS.added["<tool_call>"]] == TOKENS.encode("<tool_call>")


@pytest.mark.parametrize("ignore_merges", [True, False])
def test_an_added_token_in_the_model_s_vocabulary_is_out_of_reach(ignore_merges):
    data = changed(content="word")
    data["model"] |= {"ignore_merges": ignore_merges}
    number = data["model"]["vocab"]["word"]
    data["added_tokens"][-1]["id"] = number
    tokens = PackageTokenizer(json.dumps(data), name="test")

    assert [number] == tokens.encode("word")
    assert number not in tokens.plain("word")
    assert number not in tokens.plain("words word")
    assert "words word" == tokens.decode(tokens.plain("words word"))


def test_added_white_space_is_text_like_any_other():
    tokens = PackageTokenizer(json.dumps(changed(content="\n\n\n\n")), name="test")

    assert "\n\n\n\n" not in tokens.added
    assert tokens.encode("a\n\n\n\nb") == tokens.encode(tokens.mark("a\n\n\n\nb"))
    assert tokens.encode("a\n\n\n\nb") == tokens.plain("a\n\n\n\nb")


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip"])
@pytest.mark.parametrize("text", ["a <x> b", "a<x>b", "<x>", "_<x> ", "\n<x>\n\n<x>"])
def test_the_flags_of_added_tokens_hold_beside_marks_as_well(flag, text):
    tokens = PackageTokenizer(json.dumps(changed(content="<x>", **{flag: True})), name="test")

    assert tokens.encode(text + "end") == tokens.encode(text + f"e{MARK}nd")


def test_look_alikes_that_a_normalizer_would_unify_stay_outside():
    data = changed(content="[gMASK]", normalized=True) | {"normalizer": {"type": "NFC"}}
    tokens = PackageTokenizer(json.dumps(data), name="test")
    kelvin = "[gMAS\u212a]"

    assert tokens.added["[gMASK]"] in tokens.encode(kelvin)
    assert tokens.added["[gMASK]"] not in tokens.encode(tokens.mark(kelvin))
    assert tokens.plain(kelvin) == tokens.encode(tokens.mark(kelvin))


def test_old_files_that_do_not_name_the_model_are_read():
    data = json.loads(tokenizer_json())
    del data["model"]["type"]

    assert TOKENS.plain("one word") == PackageTokenizer(json.dumps(data), name="old").plain(
        "one word"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{", "test: tokenizer.json is not JSON"),
        ("[]", "test: expected a tokenizer.json with a BPE model"),
        (
            '{"model": {"type": "Unigram", "vocab": []}}',
            "test: expected a tokenizer.json with a BPE",
        ),
    ],
)
def test_other_files_are_refused(source, expected):
    with pytest.raises(ConfigError, match=expected):
        PackageTokenizer(source, name="test")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.json: cannot be read"):
        PackageTokenizer.load(tmp_path / "missing.json", name="test")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        ({"eos_token": "<|im_end|>"}, "<|im_end|>"),
        ({"eos_token": {"content": "<|endoftext|>"}}, "<|endoftext|>"),
        ({"eos_token": None}, None),
    ],
)
def test_the_end_token_is_read_from_beside_the_file(tmp_path, config, expected):
    folder = write_tokenizer(tmp_path)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = PackageTokenizer.load(folder / "tokenizer.json", name="test")

    assert expected == tokens.eos_token
    assert TOKENS.added.get(expected) == tokens.eos_token_id


def test_tokens_are_looked_up_by_name():
    number = TOKENS.added["<think>"]

    assert number == TOKENS.convert_tokens_to_ids("<think>")
    assert [number, None] == TOKENS.convert_tokens_to_ids(["<think>", "no such token"])
