"""qwen-code's calls are told apart by their texts, for want of ids."""

import pytest

from gyre.harnesses.roles import classify
from gyre.types.call_records import Classification, Evidence

MAIN = "You are Qwen Code, a non-interactive agent."
SUBAGENT = "You are a general-purpose subagent working for a parent agent."
SUMMARY = "You are the component that summarizes a conversation when it grows."
TOOLS = ("agent", "edit", "run_shell_command")


def shown(
    system: str = MAIN,
    *,
    tools: tuple[str, ...] = TOOLS,
    last_user: tuple[str, ...] = ("do it",),
    version: str = "0.24.4",
) -> Evidence:
    return Evidence(
        dialect="chat",
        headers={"user-agent": f"QwenCode/{version} (linux; x64)"},
        system=system,
        tools=tools,
        last_user=last_user,
    )


def test_the_main_agent_is_known_by_its_system_text() -> None:
    assert Classification(role="main", harness="qwen-code") == classify(shown())


def test_a_sub_agent_is_known_by_its_system_text() -> None:
    assert Classification(role="sub-agent", harness="qwen-code") == classify(shown(SUBAGENT))


def test_a_sub_agent_of_the_projects_own_is_counted() -> None:
    found = classify(shown("You are a careful reviewer of SQL."))
    assert ("sub-agent", False) == (found.role, found.known)


@pytest.mark.parametrize(
    ("system", "role"), [(MAIN, "main-summary"), (SUBAGENT, "sub-agent-summary")]
)
def test_a_summary_is_asked_for_by_the_last_user_message(system: str, role: str) -> None:
    found = classify(shown(system, last_user=(SUMMARY,)))
    assert (role, True) == (found.role, found.known)


def test_a_summary_under_its_own_system_text_could_be_anybodys() -> None:
    found = classify(shown(SUMMARY, tools=(), last_user=("First, reason.",)))
    assert ("main-summary", False) == (found.role, found.known)


def test_the_memory_extractor_is_a_side_call_although_it_has_tools() -> None:
    """M17: it shares the main agent's messages."""
    system = "You are now acting as the managed memory extraction subagent for an assistant."
    assert Classification(role="aux", harness="qwen-code") == classify(shown(system))


def test_another_version_is_counted() -> None:
    found = classify(shown(version="1.0.0"))
    assert ("main", "qwen-code", False) == (found.role, found.harness, found.known)
