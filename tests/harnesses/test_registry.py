"""From a table of the run file to a command that each execution fills in."""

import pytest
from tests.harnesses.support.installed import pretend_prepared

from gyre.config.run_config import HarnessConfig
from gyre.harnesses.program import ContextWindow
from gyre.harnesses.registry import PROGRAMS, open_harness, picked
from gyre.types.errors import ConfigError

WINDOW = ContextWindow.of(context_tokens=131_072, reply_tokens=8192)


def test_a_command_is_taken_as_it_is(tmp_path):
    section = HarnessConfig(argv=("agent", "{instruction}"), env={"A": "{key}"})
    command = open_harness(section, WINDOW, root=tmp_path)

    assert (("agent", "{instruction}"), {"A": "{key}"}) == (command.argv, command.variables)
    assert ({}, ()) == (command.home, command.layers)


def test_a_command_may_name_files_of_the_folder_that_gyre_runs_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = HarnessConfig(argv=("python3", "{here}/agent.py"), env={"RULES": "{here}/rules"})
    command = open_harness(section, WINDOW, root=tmp_path)

    assert ("python3", f"{tmp_path}/agent.py") == command.argv
    assert {"RULES": f"{tmp_path}/rules"} == command.variables


def test_a_program_is_started_from_where_it_is_installed(tmp_path):
    folder = pretend_prepared(PROGRAMS["claude_code"], tmp_path)
    section = HarnessConfig(kind="claude_code", args=("--model", "x"), env={"TERM": "xterm"})
    command = open_harness(section, WINDOW, root=tmp_path)

    assert str(folder / "node_modules/claude/claude") == command.argv[0]
    assert ("--model", "x", "--", "{instruction}") == command.argv[-4:]
    assert ("xterm", "1") == (command.variables["TERM"], command.variables["IS_SANDBOX"])
    assert (str(folder), "/opt/python") == command.layers


def test_another_version_is_another_folder(tmp_path):
    folder = pretend_prepared(PROGRAMS["codex"], tmp_path, "7.7.7")
    section = HarnessConfig(kind="codex", version="7.7.7")

    assert open_harness(section, WINDOW, root=tmp_path).argv[0].startswith(str(folder))


@pytest.mark.parametrize(
    ("section", "remedy"),
    [
        (HarnessConfig(kind="claude_code"), "`gyre harness prepare claude_code`"),
        (HarnessConfig(kind="codex", version="7.7.7"), "`gyre harness prepare codex@7.7.7`"),
    ],
)
def test_what_is_not_installed_is_refused_with_what_installs_it(tmp_path, section, remedy):
    with pytest.raises(ConfigError) as refused:
        open_harness(section, WINDOW, root=tmp_path)

    assert "harness.kind: " in str(refused.value)
    assert remedy in str(refused.value)


def test_a_version_is_numbers_and_points(tmp_path):
    with pytest.raises(ConfigError, match=r"harness\.version: expected a version as "):
        open_harness(HarnessConfig(kind="codex", version="../../x"), WINDOW, root=tmp_path)


def test_a_name_may_have_a_version():
    codex = PROGRAMS["codex"]

    assert (codex, codex.version) == picked("codex")
    assert (codex, "7.7.7") == picked("codex@7.7.7")


@pytest.mark.parametrize("name", ["codecs", "", "codex@", "codex@latest", "codex@1.0/../../x"])
def test_a_name_that_cannot_be_is_refused(name):
    with pytest.raises(ConfigError, match="expected"):
        picked(name)
