"""mini-swe-agent: one agent and nothing else; known by its one tool and its system text."""

from collections.abc import Container

from gyre.types.roles import Classification, Evidence

NAME = "mini-swe-agent"

SYSTEM = "You are a helpful assistant that can interact"
"""How the system text of every configuration shipped with 2.4.6 begins. A user may write another;
then the generic rule gives the same class."""
TOOLS = (("bash",), ())
"""Its tool, or none where commands are written as text."""


def recognises(evidence: Evidence) -> bool:
    is_its_own = evidence.tools in TOOLS and evidence.system.startswith(SYSTEM)
    return evidence.dialect == "chat" and is_its_own


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    return Classification(role="main", harness=NAME)
