"""The harness contract, kept by commands with places to be filled in."""

import pytest
from tests.contracts import harness as suite

from gyre.backends.harnesses.command import CommandHarness


class Command:
    harness = CommandHarness(
        ["agent", "--base={url}", "-p", "{instruction}", "--name", "{task}"],
        {"AGENT_KEY": "{key}", "AGENT_URL": "{url}/v1"},
    )


@pytest.mark.parametrize("promise", suite.EVERY_HARNESS, ids=lambda promise: promise.__name__)
def test_a_command_keeps_the_promise_that(promise):
    promise(Command())
