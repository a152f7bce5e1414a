"""Claude Code's calls are told apart as its recorded requests show."""

import pytest

from gyre.harnesses.roles import classify
from gyre.types.call_records import Classification, Evidence

TOOLS = ("Agent", "Bash", "Read", "Write")
REMINDER = "<system-reminder>\nsomething about the day\n</system-reminder>"
SUMMARY = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- and so on"


def shown(
    version: str = "2.1.220",
    *,
    agent: str | None = None,
    parent: str | None = None,
    flagged: bool | None = None,
    tools: tuple[str, ...] = TOOLS,
    last_user: tuple[str, ...] = (REMINDER, "fix the tests"),
) -> Evidence:
    headers = {"user-agent": f"claude-cli/{version} (external, sdk-cli)"}
    if agent is not None:
        headers["x-claude-code-agent-id"] = agent
    if parent is not None:
        headers["x-claude-code-parent-agent-id"] = parent
    is_flagged = agent is not None if flagged is None else flagged
    billing = f"x-anthropic-billing-header: cc_version={version}.1e1; cc_entrypoint=sdk-cli;"
    flag = " cc_is_subagent=true;" if is_flagged else ""
    return Evidence(
        dialect="messages",
        headers=headers,
        system=f"{billing}{flag}\nYou are an agent.\nThe real prompt.",
        tools=tools,
        last_user=last_user,
        num_messages=2,
    )


@pytest.mark.parametrize("version", ["2.1.220", "2.1.325"])
def test_a_call_without_agent_id_is_the_main_agents(version: str) -> None:
    assert Classification(role="main", harness="claude-code") == classify(shown(version))


@pytest.mark.parametrize("version", ["2.1.220", "2.1.325"])
def test_an_agent_id_makes_a_sub_agents_call(version: str) -> None:
    expected = Classification(role="sub-agent", harness="claude-code", agent="a65")
    assert expected == classify(shown(version, agent="a65"))


def test_a_nested_sub_agent_names_its_parent() -> None:
    found = classify(shown(agent="a94", parent="a65"))
    assert ("sub-agent", "a94", "a65") == (found.role, found.agent, found.parent_agent)


@pytest.mark.parametrize("version", ["2.1.220", "2.1.325"])
def test_the_summary_instruction_may_follow_tool_results(version: str) -> None:
    """The instruction is one more block of the last user message."""
    last_user = ("the output of a tool", SUMMARY)
    assert "main-summary" == classify(shown(version, last_user=last_user)).role
    found = classify(shown(version, agent="a65", last_user=last_user))
    assert ("sub-agent-summary", "a65") == (found.role, found.agent)


def test_words_that_only_quote_the_instruction_make_no_summary() -> None:
    assert "main" == classify(shown(last_user=(f"what does this mean: {SUMMARY}",))).role


def test_a_call_without_client_tools_is_a_side_call() -> None:
    """M17: a web search comes without an agent id and would pass for main."""
    found = classify(shown(tools=(), last_user=("search for something",)))
    assert ("aux", True) == (found.role, found.known)


def test_a_side_call_stays_one_when_its_text_asks_for_a_summary() -> None:
    assert "aux" == classify(shown(tools=(), last_user=(SUMMARY,))).role


def test_flag_and_header_that_disagree_are_counted() -> None:
    only_flag = classify(shown(flagged=True))
    only_header = classify(shown(agent="a65", flagged=False))
    assert ("sub-agent", False) == (only_flag.role, only_flag.known)
    assert ("sub-agent", False) == (only_header.role, only_header.known)


def test_another_version_is_read_by_the_newest_markers_and_counted() -> None:
    found = classify(shown("2.9.1", agent="a65", last_user=(SUMMARY,)))
    assert ("sub-agent-summary", "claude-code", False) == (found.role, found.harness, found.known)


def test_the_flag_counts_in_the_billing_line_only() -> None:
    plain = shown()
    quoted = Evidence(
        dialect="messages",
        headers=plain.headers,
        system=plain.system + "\nexplain cc_is_subagent=true",
        tools=TOOLS,
        last_user=plain.last_user,
    )
    assert Classification(role="main", harness="claude-code") == classify(quoted)


def test_the_billing_line_alone_names_the_program() -> None:
    plain = shown("2.1.325")
    bare = Evidence(dialect="messages", system=plain.system, tools=TOOLS)
    assert Classification(role="main", harness="claude-code") == classify(bare)
