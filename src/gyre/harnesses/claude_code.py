"""Everything Gyre knows of Claude Code: install, launch, call roles.

Claude Code: agents by header, summaries by their first words, side calls by having no tools.

Rule 1: side calls first, because a web search comes without an agent id and looks like main.
Rule 2: then summaries, then whose they are.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from gyre.harnesses.program import AgentProgram, ContextWindow, Npm, of_version, version_in
from gyre.types.call_records import CallRole, Classification, Evidence

LEAST_WINDOW = 100_000
"""It takes a smaller window for this one, so that it better gets none: when a prompt does not
fit the proxy says so, and it compacts then."""
PATIENCE_MS = 1_800_000
_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
_LIMITS_MS = (
    "API_TIMEOUT_MS",
    "CLAUDE_STREAM_IDLE_TIMEOUT_MS",
    "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS",
)


def _variables(window: ContextWindow) -> dict[str, str]:
    found = {
        # As root it refuses to run without permissions asked, unless a variable names a sandbox.
        "IS_SANDBOX": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Without this the limits below are ignored.
        "API_FORCE_IDLE_TIMEOUT": "0",
        # Otherwise newer versions change the tool list in the middle of a conversation.
        "ENABLE_TOOL_SEARCH": "false",
        "CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS": "2",
    }
    found |= dict.fromkeys(_MODELS, "policy") | dict.fromkeys(_LIMITS_MS, str(PATIENCE_MS))
    if window.context_tokens >= LEAST_WINDOW:
        found["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(window.context_tokens)
    return found


PROGRAM = AgentProgram(
    name="claude_code",
    version="2.1.325",
    source=Npm(packages={"claude": "@anthropic-ai/claude-code-linux-x64@{version}"}),
    start=("node_modules/claude/claude",),
    flags=("--print", "--output-format", "json", "--dangerously-skip-permissions"),
    task=("--", "{instruction}"),
    variables=_variables,
)


NAME = "claude-code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Texts by which one version's calls show their role."""

    summary: str
    """How a text block of the last user message begins when a summary is asked for."""
    subagent: str
    """What the billing line, first of the system text, holds in every sub-agent's call."""


_SUMMARY = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."

MARKERS: Mapping[str, Markers] = {
    "2.1.220": Markers(summary=_SUMMARY, subagent="cc_is_subagent=true"),
    "2.1.325": Markers(summary=_SUMMARY, subagent="cc_is_subagent=true"),
}

AGENT = "x-claude-code-agent-id"
"""Sent by sub-agents only."""
PARENT = "x-claude-code-parent-agent-id"
"""Sent by sub-agents of sub-agents only."""

_USER_AGENT = re.compile(r"claude-cli/(\d+\.\d+\.\d+)")
_BILLING = re.compile(r"x-anthropic-billing-header: cc_version=(\d+\.\d+\.\d+)")


def recognises(evidence: Evidence) -> bool:
    return evidence.dialect == "messages" and _version(evidence) is not None


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    markers, known = of_version(MARKERS, _version(evidence))
    agent = evidence.headers.get(AGENT)
    billing, _, _ = evidence.system.partition("\n")
    flagged = markers.subagent in billing
    is_subagent = flagged or agent is not None
    return Classification(
        role=_role(evidence, markers, is_subagent=is_subagent),
        harness=NAME,
        agent=agent,
        parent_agent=evidence.headers.get(PARENT),
        # A side call has no billing line to agree with.
        known=known and (not evidence.tools or flagged == (agent is not None)),
    )


def _role(evidence: Evidence, markers: Markers, *, is_subagent: bool) -> CallRole:
    if not evidence.tools:
        return "aux"
    if any(text.startswith(markers.summary) for text in evidence.last_user):
        return "sub-agent-summary" if is_subagent else "main-summary"
    return "sub-agent" if is_subagent else "main"


def _version(evidence: Evidence) -> str | None:
    sent = evidence.headers.get("user-agent", "")
    return version_in(sent, _USER_AGENT) or version_in(evidence.system, _BILLING)
