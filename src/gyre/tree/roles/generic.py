"""The rule for harnesses that nobody has looked at: every call is the main agent's, and counted."""

from gyre.words.roles import Classified, Evidence

NAME = "generic"


def classify(evidence: Evidence) -> Classified:
    return Classified(role="main", harness=NAME, known=False)
