"""The harness contract, kept by commands with places and by every program that can be installed."""

import pytest
from tests.contracts import harness as suite
from tests.harnesses.support.installed import pretend_prepared

from gyre.config.run_config import HarnessConfig
from gyre.harnesses.command import CommandHarness
from gyre.harnesses.program import ContextWindow
from gyre.harnesses.registry import PROGRAMS, open_harness


class Command:
    harness = CommandHarness(
        ["agent", "--base={url}", "-p", "{instruction}", "--name", "{task}"],
        {"AGENT_KEY": "{key}", "AGENT_URL": "{url}/v1"},
        home={".agent": "{url} {key}"},
        layers=["/opt/agent"],
    )


class Installed:
    def __init__(self, kind, root):
        pretend_prepared(PROGRAMS[kind], root)
        window = ContextWindow.of(context_tokens=131_072, reply_tokens=8192)
        opened = open_harness(HarnessConfig(kind=kind), window, root=root)
        self.harness = CommandHarness(
            opened.argv, opened.variables, home=opened.home, layers=opened.layers
        )


@pytest.mark.parametrize("promise", suite.EVERY_HARNESS, ids=lambda promise: promise.__name__)
def test_a_command_keeps_the_promise_that(promise):
    promise(Command())


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("promise", suite.EVERY_HARNESS, ids=lambda promise: promise.__name__)
def test_an_installed_program_keeps_the_promise_that(promise, kind, tmp_path):
    promise(Installed(kind, tmp_path))
