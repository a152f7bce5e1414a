"""Evidence goes to the one table that recognises it, and strangers to the generic rule."""

from pathlib import Path

import pytest

from gyre.harnesses import claude_code, codex, install, opencode, qwen_code
from gyre.harnesses.program import of_version
from gyre.harnesses.roles import TABLES, classify
from gyre.types.call_records import Classification, Evidence

MINI = Evidence(
    dialect="chat",
    headers={"user-agent": "OpenAI/Python 2.54.0"},
    system="You are a helpful assistant that can interact with a computer.",
    tools=("bash",),
)

SPECIMENS = {
    "claude-code": Evidence(
        dialect="messages", headers={"user-agent": "claude-cli/2.1.220 (x)"}, tools=("Bash",)
    ),
    "codex": Evidence(
        dialect="responses",
        headers={"user-agent": "codex_exec/0.166.0 (x)"},
        metadata={"request_kind": "turn"},
        tools=("exec_command",),
    ),
    "opencode": Evidence(
        dialect="chat", headers={"user-agent": "opencode/1.18.33"}, tools=("bash",)
    ),
    "qwen-code": Evidence(
        dialect="chat",
        headers={"user-agent": "QwenCode/0.24.4 (x)"},
        system="You are Qwen Code",
        tools=("edit",),
    ),
    "mini-swe-agent": MINI,
}


@pytest.mark.parametrize("name", SPECIMENS)
def test_exactly_one_table_recognises_each_harness(name: str) -> None:
    evidence = SPECIMENS[name]
    assert [name] == [table.NAME for table in TABLES if table.recognises(evidence)]
    assert Classification(role="main", harness=name) == classify(evidence)


def test_an_unknown_harness_is_main_and_counted() -> None:
    script = Evidence(dialect="chat", headers={"user-agent": "my-script/1"}, tools=("bash",))
    assert Classification(role="main", harness="generic", known=False) == classify(script)


def test_evidence_of_nothing_is_main_and_counted() -> None:
    nothing = Evidence(dialect="messages")
    assert Classification(role="main", harness="generic", known=False) == classify(nothing)


def test_a_program_that_only_names_another_in_the_wrong_dialect_is_unknown() -> None:
    found = classify(Evidence(dialect="chat", headers={"user-agent": "claude-cli/2.1.220"}))
    assert ("generic", False) == (found.harness, found.known)


def test_an_agent_with_more_tools_is_not_taken_for_mini_swe_agent() -> None:
    other = Evidence(dialect="chat", system=MINI.system, tools=("bash", "edit"))
    assert "generic" == classify(other).harness


def test_the_newest_version_is_newest_by_number_not_by_letter() -> None:
    table = {"2.1.9": "old", "2.1.220": "new"}
    assert ("new", False) == of_version(table, "3.0.0")
    assert ("new", False) == of_version(table, None)
    assert ("old", True) == of_version(table, "2.1.9")


def test_tables_list_the_versions_that_the_lock_installs() -> None:
    locks = Path(install.__file__).parent / "lock"
    # mini-swe-agent is told by its own words, whatever its version.
    locked = {
        version
        for name, _, version in (one.name.rpartition("-") for one in locks.iterdir())
        if name != "mini_swe_agent"
    }
    listed = [*claude_code.MARKERS, *codex.MARKERS, *opencode.MARKERS, *qwen_code.MARKERS]
    assert locked == set(listed)
