"""What counts as a whole answer."""

import math

import pytest

from gyre.inference.clients.http import check, version
from gyre.types.errors import EngineError


def test_one_finite_log_probability_per_id_is_accepted():
    assert [-1.0, 0.0] == check("e", [5, 2**31 - 1], [-1.0, 0.0])
    assert [] == check("e", [], [])


def test_none_at_all_stays_none():
    """T27."""
    assert check("e", [5, 6], None) is None


@pytest.mark.parametrize(
    "values",
    [
        [-1.0],
        [-1.0] * 3,
        [-1.0, None],
        [math.nan, -1.0],
        [-1.0, -math.inf],
        [math.inf, -math.inf],
        [-1.7e308, -1.7e308],
        [-1.0, -(10**400)],
        [-1.0, -1e39],
    ],
)
def test_anything_else_is_garbage(values):
    """T27: FAULTS 6."""
    with pytest.raises(EngineError, match="log-probabilit") as error:
        check("e", [5, 6], values)

    assert error.value.retryable


@pytest.mark.parametrize("token", [-1, 2**31])
def test_an_id_that_no_vocabulary_has_is_garbage(token):
    with pytest.raises(EngineError, match="output id outside"):
        check("e", [5, token], None)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *[("17", 17), (17, 17), ("default", None), ("", None), ("²", None), (None, None)],
        *[("9" * 5000, None), (10**30, None), (-1, None)],
    ],
)
def test_a_version_is_a_number_or_unknown(said, meant):
    assert meant == version(said)
