"""Codex says of every request what it is."""

from gyre.harnesses.roles import classify
from gyre.types.call_records import Classification, Evidence

TOOLS = ("exec_command", "write_stdin", "view_image")


def shown(
    *,
    kind: str = "turn",
    source: str = "user",
    thread: str = "root",
    parent: str | None = None,
    tools: tuple[str, ...] = TOOLS,
    version: str = "0.166.0",
) -> Evidence:
    metadata = {
        "session_id": "root",
        "thread_id": thread,
        "thread_source": source,
        "request_kind": kind,
        "agent_name": "/root",
    }
    if parent is not None:
        metadata["parent_thread_id"] = parent
    return Evidence(
        dialect="responses",
        headers={"user-agent": f"codex_exec/{version} (Debian 12; x86_64)"},
        metadata=metadata,
        tools=tools,
        last_user=("do it",),
    )


def test_a_turn_of_the_users_thread_is_main() -> None:
    assert Classification(role="main", harness="codex") == classify(shown())


def test_a_compaction_is_a_summary_although_it_has_no_tools() -> None:
    found = classify(shown(kind="compaction", tools=()))
    assert Classification(role="main-summary", harness="codex") == found


def test_a_spawned_thread_is_a_sub_agent_of_the_main_one() -> None:
    found = classify(shown(source="subagent", thread="t1", parent="root"))
    assert Classification(role="sub-agent", harness="codex", agent="t1") == found


def test_a_thread_spawned_by_a_sub_agent_names_it() -> None:
    found = classify(shown(source="subagent", thread="t2", parent="t1"))
    assert ("t2", "t1") == (found.agent, found.parent_agent)


def test_a_sub_agents_compaction_is_its_own_summary() -> None:
    found = classify(shown(kind="compaction", source="subagent", thread="t1", parent="root"))
    assert ("sub-agent-summary", "t1") == (found.role, found.agent)


def test_a_kind_nobody_has_seen_is_counted() -> None:
    with_tools, without = classify(shown(kind="review")), classify(shown(kind="memo", tools=()))
    assert ("main", False) == (with_tools.role, with_tools.known)
    assert ("aux", False) == (without.role, without.known)


def test_another_version_is_counted() -> None:
    found = classify(shown(version="1.2.0"))
    assert ("main", "codex", False) == (found.role, found.harness, found.known)


def test_metadata_that_is_missing_is_counted() -> None:
    bare = Evidence(dialect="responses", headers={"user-agent": "codex_exec/0.166.0"}, tools=TOOLS)
    assert Classification(role="main", harness="codex", known=False) == classify(bare)
