"""Classifies a call (main, sub-agent, summary, aux) by harness."""

from collections.abc import Container
from typing import Protocol

from gyre.harnesses import (
    claude_code,
    codex,
    declared,
    mini_swe_agent,
    opencode,
    qwen_code,
)
from gyre.types.call_records import Classification, Evidence


class RoleRules(Protocol):
    """How one harness's calls get their roles; each harness's module implements it."""

    def recognises(self, evidence: Evidence) -> bool: ...

    def classify(self, evidence: Evidence, subagents: Container[str]) -> Classification: ...


TABLES: tuple[RoleRules, ...] = (declared, claude_code, codex, opencode, qwen_code, mini_swe_agent)
"""What a program says of itself goes before what it can be recognised by."""


GENERIC = "generic"
"""Of harnesses that Gyre does not know: every call is the main agent's, and counted."""


def classify(evidence: Evidence, subagents: Container[str] = ()) -> Classification:
    """The call's class; `known` is False where no table, version or marker covers it.

    `subagents` are the agents that earlier calls of the execution were classified with, because
    a harness may name an agent's parent in some of its calls only.
    """
    for table in TABLES:
        if table.recognises(evidence):
            return table.classify(evidence, subagents)
    return Classification(role="main", harness=GENERIC, known=False)
