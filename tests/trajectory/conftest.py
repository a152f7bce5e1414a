"""Fixtures of the tests that these were beside."""

from tests.observability.conftest import errand, make_story

__all__ = ["errand", "make_story"]
