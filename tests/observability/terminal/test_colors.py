"""The palette: one style sheet, whoever draws."""

import re

import pytest

from gyre.observability.dashboard.panels_cells import CAUSES
from gyre.observability.resource_use import OTHERS, ROLES
from gyre.observability.terminal.colors import SHEET, colour, palette
from gyre.scheduler.cells import CellState
from gyre.types.outcomes import Ending

WORDS = [
    *(one.value for one in (*CellState, *CAUSES, *Ending)),
    *ROLES,
    *OTHERS,
    *(f"run {number}" for number in range(4)),
]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_word_of_a_panel_has_a_colour(theme):
    assert [] == [one for one in WORDS if not re.fullmatch("#[0-9a-f]{6}", colour(one, theme))]


def test_it_is_the_style_sheet_and_no_copy_of_it():
    training = re.search(r"--c-training: light-dark\((#\w+), (#\w+)\)", SHEET.read_text())

    assert training.groups() == (colour("training"), colour("training", "dark"))
    assert palette("light").keys() == palette("dark").keys()


def test_a_word_without_a_colour_is_an_error():
    with pytest.raises(KeyError, match="c-no-such-word"):
        colour("no such word")
