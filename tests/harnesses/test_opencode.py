"""opencode's calls are told apart by tools, system text and parent session."""

from gyre.harnesses.roles import classify
from gyre.types.call_records import Classification, Evidence

TOOLS = ("bash", "edit", "read", "task")


def shown(
    system: str = "You are opencode, an agent.",
    *,
    tools: tuple[str, ...] = TOOLS,
    parent: str | None = None,
    version: str = "1.18.33",
) -> Evidence:
    headers = {"user-agent": f"opencode/{version} ai-sdk/x runtime/y", "x-session-id": "ses_1"}
    if parent is not None:
        headers |= {"x-session-id": "ses_2", "x-parent-session-id": parent}
    return Evidence(dialect="chat", headers=headers, system=system, tools=tools)


def test_the_first_session_is_main() -> None:
    assert Classification(role="main", harness="opencode") == classify(shown())


def test_a_session_with_a_parent_is_a_sub_agent() -> None:
    expected = Classification(
        role="sub-agent", harness="opencode", agent="ses_2", parent_agent="ses_1"
    )
    assert expected == classify(shown(parent="ses_1"))


def test_a_title_is_a_side_call() -> None:
    """M17: it is sent before the main agent's first call."""
    found = classify(shown("You are a title generator. Only a title.", tools=()))
    assert Classification(role="aux", harness="opencode") == found


def test_a_summary_comes_under_a_system_text_of_its_own() -> None:
    system = "You are a context summarization agent. You are given a conversation."
    assert "main-summary" == classify(shown(system, tools=())).role
    assert "sub-agent-summary" == classify(shown(system, tools=(), parent="ses_1")).role


def test_a_sub_agents_summary_names_its_session_and_no_parent() -> None:
    system = "You are a context summarization agent. You are given a conversation."
    found = classify(shown(system, tools=()), subagents={"ses_1"})
    assert ("sub-agent-summary", "ses_1", True) == (found.role, found.agent, found.known)
    assert "main-summary" == classify(shown(system, tools=()), subagents={"ses_2"}).role


def test_an_agent_whose_text_speaks_of_titles_keeps_its_class() -> None:
    assert "main" == classify(shown("You are a title generator for films.")).role


def test_a_call_without_tools_that_nobody_has_seen_is_counted() -> None:
    found = classify(shown("You are a translator.", tools=()))
    assert ("aux", False) == (found.role, found.known)


def test_another_version_is_counted() -> None:
    found = classify(shown(version="2.0.0"))
    assert ("main", "opencode", False) == (found.role, found.harness, found.known)
