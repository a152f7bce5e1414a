import hashlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.testing.tokenizer import CHATML, QWEN3, tokenizer, tokenizer_json, write_tokenizer

PROSE = (
    "The proxy restarts from its call logs, and the harness sends its last request again. I look "
    "at the failing test first, then read the module it imports. It seems that the parser drops "
    "the trailing newline when a file is empty."
)
SPEC = (
    '{"type": "function", "function": {"name": "search_files", "description": "Search for a '
    'pattern in files", "parameters": {"type": "object", "properties": {"pattern": {"type": '
    '"string"}, "limit": {"type": "integer"}}, "required": ["pattern"]}}}'
)


def ids(text):
    return tokenizer().encode(text, add_special_tokens=False).ids


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_exactly(text):
    assert text == tokenizer().decode(ids(text), skip_special_tokens=False)


@pytest.mark.parametrize("text", [PROSE, SPEC])
def test_english_and_json_take_a_third_of_their_characters_or_less(text):
    assert 3.0 < len(text) / len(ids(text))


def test_it_is_the_same_in_every_process():
    code = (
        "import hashlib; from gyre.testing.tokenizer import tokenizer_json; "
        "print(hashlib.sha256(tokenizer_json().encode()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert hashlib.sha256(tokenizer_json().encode()).hexdigest() == other.stdout.strip()


def test_added_tokens_have_the_highest_ids_in_order():
    size = tokenizer().get_vocab_size()

    assert list(range(size - len(QWEN3), size)) == [tokenizer().token_to_id(one) for one in QWEN3]
    assert None is tokenizer(CHATML).token_to_id("<think>")


def test_a_newline_sticks_to_the_punctuation_before_it():
    """T03: so that tests can tell a merge across the end of a reply."""
    assert ids("done!") + ids("\n\n") != ids("done!\n\n")


def test_a_model_folder_holds_the_tokenizer(tmp_path):
    folder = write_tokenizer(tmp_path / "tiny", CHATML)

    assert tokenizer_json(CHATML) == (folder / "tokenizer.json").read_text(encoding="utf-8")
