"""The rule for harnesses Gyre does not know: every call is the main agent's, and counted."""

from collections.abc import Container

from gyre.types.call_records import Classification, Evidence

NAME = "generic"


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    return Classification(role="main", harness=NAME, known=False)
