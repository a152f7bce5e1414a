"""A harness that is a command."""

import pytest

from gyre.harnesses.command import CommandHarness
from gyre.types.errors import ConfigError
from gyre.types.tasks import Endpoint, EvaluationRule, Task

TASK = Task(id="t", instruction="go {url}", files=None, evaluation=EvaluationRule(argv=("x",)))
ENDPOINT = Endpoint(url="http://here", key="secret")


def test_places_are_filled_in_once_and_other_braces_stay():
    harness = CommandHarness(
        ["a", "{instruction}", '{"at": "{url}"}', "{other}", "{task}"], {"K": "x{key}", "B": "{}"}
    )
    command = harness.command(TASK, ENDPOINT)

    assert ("a", "go {url}", '{"at": "http://here"}', "{other}", "t") == command.argv
    assert {"K": "xsecret", "B": "{}"} == command.variables


def test_files_are_filled_in_and_layers_are_handed_on():
    harness = CommandHarness(["a"], {}, home={".a": "{url}/v1 {env:KEY} {key}"}, layers=["/opt/a"])
    command = harness.command(TASK, ENDPOINT)

    assert {".a": "http://here/v1 {env:KEY} secret"} == command.home
    assert ("/opt/a",) == command.layers


@pytest.mark.parametrize("argv", [[], ["agent", "--key={key}"]])
def test_a_command_that_cannot_be_is_refused(argv):
    with pytest.raises(ConfigError, match="harness: "):
        CommandHarness(argv, {})


def test_secrets_are_not_shown():
    command = CommandHarness(["a"], {"K": "{key}"}).command(TASK, ENDPOINT)

    assert "secret" not in repr(ENDPOINT) + repr(command)
