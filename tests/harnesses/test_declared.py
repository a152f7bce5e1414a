"""A program may say whose call it is, and then it is believed."""

import pytest

from gyre.harnesses.roles import classify
from gyre.types.call_records import CALL_ROLES, CallRole, Classification, Evidence


def declared(**headers: str) -> Classification:
    names = {f"x-gyre-{name.replace('_', '-')}": value for name, value in headers.items()}
    return classify(Evidence(dialect="chat", headers={"user-agent": "my-script/1", **names}))


@pytest.mark.parametrize("role", CALL_ROLES)
def test_a_declared_role_is_taken_as_it_is(role: CallRole) -> None:
    assert Classification(role=role, harness="declared") == declared(role=role)


def test_a_call_that_names_its_agent_is_a_sub_agents() -> None:
    expected = Classification(
        role="sub-agent", harness="declared", agent="reader-1", parent_agent="lead"
    )
    assert expected == declared(agent="reader-1", parent_agent="lead")


def test_a_summary_of_a_sub_agent_keeps_its_agent() -> None:
    found = declared(role="sub-agent-summary", agent="reader-1")
    assert ("sub-agent-summary", "reader-1") == (found.role, found.agent)


@pytest.mark.parametrize(("headers", "role"), [({}, "main"), ({"agent": "reader-1"}, "sub-agent")])
def test_a_role_that_does_not_exist_is_counted(headers: dict[str, str], role: str) -> None:
    found = declared(role="boss", **headers)
    assert (role, False) == (found.role, found.known)


def test_what_a_program_declares_goes_before_what_it_is_recognised_by() -> None:
    headers = {"user-agent": "claude-cli/2.1.220 (x)", "x-gyre-role": "aux"}
    found = classify(Evidence(dialect="messages", headers=headers, tools=("Bash",)))
    assert ("aux", "declared") == (found.role, found.harness)


def test_a_parent_alone_declares_nothing() -> None:
    assert "generic" == declared(parent_agent="lead").harness
