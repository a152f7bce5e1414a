"""Call roles from headers that a program sends itself, as scripts do.

Rule 1: either of `x-gyre-role` and `x-gyre-agent` declares a call; other programs send neither.
Rule 2: without a role, a call that names its agent is a sub-agent's.
"""

from collections.abc import Container
from typing import cast

from gyre.types.call_records import CALL_ROLES, CallRole, Classification, Evidence

NAME = "declared"

ROLE = "x-gyre-role"
"""One of the five roles."""
AGENT = "x-gyre-agent"
"""Which sub-agent makes the call; the main agent sends none."""
PARENT = "x-gyre-parent-agent"
"""Which sub-agent started that one; sent by sub-agents of sub-agents."""


def recognises(evidence: Evidence) -> bool:
    return ROLE in evidence.headers or AGENT in evidence.headers


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    agent = evidence.headers.get(AGENT)
    fallback: CallRole = "main" if agent is None else "sub-agent"
    said = evidence.headers.get(ROLE, fallback)
    is_role = said in CALL_ROLES
    return Classification(
        role=cast(CallRole, said) if is_role else fallback,
        harness=NAME,
        agent=agent,
        parent_agent=evidence.headers.get(PARENT),
        known=is_role,
    )
