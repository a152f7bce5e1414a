"""opencode: sub-agents name a parent session; titles and summaries come without tools."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from gyre.harnesses.markers import of_version, version_in
from gyre.types.roles import CallRole, Classification, Evidence

NAME = "opencode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """How the system text of a call without tools begins."""

    summary: str
    side: tuple[str, ...]


MARKERS: Mapping[str, Markers] = {
    "1.18.33": Markers(
        summary="You are a context summarization agent",
        side=("You are a title generator",),
    ),
}

SESSION = "x-session-id"
PARENT = "x-parent-session-id"
"""Sent by sub-agents only, and not when one is summed up: then its session was seen before."""

_USER_AGENT = re.compile(r"opencode/(\d+\.\d+\.\d+)")


def recognises(evidence: Evidence) -> bool:
    return evidence.dialect == "chat" and _version(evidence) is not None


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    markers, known = of_version(MARKERS, _version(evidence))
    parent, session = evidence.headers.get(PARENT), evidence.headers.get(SESSION)
    is_subagent = parent is not None or (session is not None and session in subagents)
    role, is_marked = _role(evidence, markers, is_subagent=is_subagent)
    return Classification(
        role=role,
        harness=NAME,
        agent=session if is_subagent else None,
        parent_agent=parent,
        known=known and is_marked,
    )


def _role(evidence: Evidence, markers: Markers, *, is_subagent: bool) -> tuple[CallRole, bool]:
    """The class, and whether a marker told it."""
    if evidence.tools:
        return ("sub-agent" if is_subagent else "main"), True
    if evidence.system.startswith(markers.summary):
        return ("sub-agent-summary" if is_subagent else "main-summary"), True
    return "aux", evidence.system.startswith(markers.side)


def _version(evidence: Evidence) -> str | None:
    return version_in(evidence.headers.get("user-agent", ""), _USER_AGENT)
