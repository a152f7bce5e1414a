"""What cannot fit is refused before it is encoded, with the field that holds it."""

import json

import pytest
from tests.proxy.session.conftest import OPENED

from gyre.proxy.dialects.openai_responses import OpenAIResponses
from gyre.proxy.session.session import Session
from gyre.testing.renderer import ByteRenderer
from gyre.types.errors import TooLarge
from gyre.types.sampling import SamplingParams


class Sparse(ByteRenderer):
    """Has one token for very many bytes, as tokenizers have of blanks."""

    def encode(self, text):
        return super().encode(text[::64])


def test_text_that_is_much_and_few_tokens_is_refused_by_the_name_of_its_field():
    session = Session(OPENED, Sparse(), sampling=SamplingParams(max_tokens=8), context_tokens=4096)
    session.apply(OPENED)
    dialect = OpenAIResponses()
    wire = dialect.split(json.dumps({"model": "policy", "input": " " * 200_000}).encode())

    with pytest.raises(TooLarge, match="expected at most 131072 bytes of new text") as refused:
        session.count(dialect, wire)
    assert "input" == refused.value.where
