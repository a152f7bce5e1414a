"""Everything Gyre knows of opencode: install, launch, call roles."""

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from gyre.harnesses.program import AgentProgram, ContextWindow, Npm, of_version, user_agent_version
from gyre.types.call_records import CallRole, Classification, Evidence

_QUIET = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")


def _variables(window: ContextWindow) -> dict[str, str]:
    return {f"OPENCODE_DISABLE_{name}": "1" for name in _QUIET}


def _home(window: ContextWindow) -> dict[str, str]:
    limit = {"context": window.context_tokens, "output": window.context_tokens - window.compact_at}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        # It reads the variable itself, so that the key lies in no file.
        "options": {"baseURL": "{url}/v1", "apiKey": "{env:OPENAI_API_KEY}"},
        "models": {"policy": {"limit": limit}, "policy-small": {}},
    }
    config = {
        "model": "gyre/policy",
        "small_model": "gyre/policy-small",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"*": "allow"},
        # A sub-agent may start one of its own only where both of these say so.
        "subagent_depth": 2,
        "agent": {"general": {"permission": {"task": "allow"}}},
        "provider": {"gyre": provider},
    }
    return {".config/opencode/opencode.json": json.dumps(config, indent=2)}


PROGRAM = AgentProgram(
    name="opencode",
    version="1.18.33",
    source=Npm(packages={"opencode": "opencode-linux-x64@{version}"}),
    start=("node_modules/opencode/bin/opencode",),
    flags=("run", "--format", "json"),
    task=("--", "{instruction}"),
    variables=_variables,
    home=_home,
)


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
    return evidence.dialect == "chat" and user_agent_version(evidence, _USER_AGENT) is not None


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    markers, known = of_version(MARKERS, user_agent_version(evidence, _USER_AGENT))
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
    """The class, and whether it follows from a marker."""
    if evidence.tools:
        return ("sub-agent" if is_subagent else "main"), True
    if evidence.system.startswith(markers.summary):
        return ("sub-agent-summary" if is_subagent else "main-summary"), True
    return "aux", evidence.system.startswith(markers.side)
