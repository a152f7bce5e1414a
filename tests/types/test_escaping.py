"""Text of somebody else's, before it is shown or kept."""

import pytest

from gyre.types.errors import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ü, 漢字 and\ttabs\n", "plain, ü, 漢字 and\ttabs\n"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("over\rwritten\x08\x00", "over\\x0dwritten\\x08\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\u202eb"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_spelled_out(text, shown):
    assert shown == visible(text)
    assert shown.encode()


def test_long_text_is_cut_and_its_length_is_said():
    assert "aaa... (5 letters)" == visible("aaaaa", 3)
