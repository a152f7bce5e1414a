"""What a served model's own files say: how text becomes ids, and where a reply ends."""

import json

import pytest

from gyre.inference.server.main import TokenizerFile, end_ids
from gyre.testing.tokenizer import tokenizer, write_tokenizer
from gyre.types.errors import ModelError


@pytest.fixture
def folder(tmp_path):
    return write_tokenizer(tmp_path)


def write(folder, name, **fields):
    (folder / name).write_text(json.dumps(fields))


def ends(folder):
    return list(end_ids(folder, TokenizerFile(folder / "tokenizer.json")))


def test_a_reply_ends_where_any_file_says(folder):
    end = tokenizer().token_to_id("<|im_end|>")
    assert [] == ends(folder)

    write(folder, "config.json", eos_token_id=3)
    assert [3] == ends(folder)

    write(folder, "generation_config.json", eos_token_id=[4, 5])
    write(folder, "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    assert [4, 5, 3, end] == ends(folder)

    write(folder, "tokenizer_config.json", eos_token="<|im_end|>")
    assert [4, 5, 3, end] == ends(folder)


def test_an_end_that_is_no_token_is_none(folder):
    write(folder, "config.json", eos_token_id=None)
    write(folder, "tokenizer_config.json", eos_token="<nothing>")

    assert [] == ends(folder)


def test_text_becomes_ids_and_text_again(folder):
    made = TokenizerFile(folder / "tokenizer.json")
    ids = made.encode("hello<|im_end|>")

    assert tokenizer().encode("hello<|im_end|>").ids == ids
    assert ("hello<|im_end|>", "hello") == (made.whole(ids), made.decode(ids, skip_special=True))


def test_text_that_is_no_unicode_is_refused(folder):
    with pytest.raises(ValueError, match="lone surrogates"):
        TokenizerFile(folder / "tokenizer.json").encode("\ud800")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {}}', "\xff"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(ModelError, match=r"tokenizer\.json: expected"):
        TokenizerFile(path)
