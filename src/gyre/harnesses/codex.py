"""Everything Gyre knows of Codex: install, launch, call roles."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from gyre.harnesses.program import AgentProgram, ContextWindow, Npm, of_version, user_agent_version
from gyre.types.call_records import CallRole, Classification, Evidence

_CONFIG = """\
model = "policy"
model_provider = "gyre"
model_context_window = {context}
# A prompt that does not fit ends it, so it must sum up in time.
model_auto_compact_token_limit = {compact_at}
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.gyre]
name = "gyre"
base_url = "{{url}}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
# While an engine changes its role a call is held, and nothing is sent.
stream_idle_timeout_ms = 1800000

[agents]
max_threads = 2
max_depth = 2

[features]
plugins = false
apps = false

[analytics]
enabled = false
"""


def _home(window: ContextWindow) -> dict[str, str]:
    text = _CONFIG.format(context=window.context_tokens, compact_at=window.compact_at)
    return {".codex/config.toml": text}


PROGRAM = AgentProgram(
    name="codex",
    version="0.166.0",
    source=Npm(packages={"codex": "@openai/codex@{version}-linux-x64"}),
    start=("node_modules/codex/vendor/x86_64-unknown-linux-musl/bin/codex",),
    flags=("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    task=("--", "{instruction}"),
    home=_home,
)


NAME = "codex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Values of the turn metadata that show a call's role."""

    turn: str
    """`request_kind` of an agent's own step."""
    summary: str
    """`request_kind` of a compaction; its tool list is empty."""
    subagent: str
    """`thread_source` of a spawned thread."""


MARKERS: Mapping[str, Markers] = {
    "0.166.0": Markers(turn="turn", summary="compaction", subagent="subagent"),
}

_USER_AGENT = re.compile(r"codex[\w-]*/(\d+\.\d+\.\d+)")


def recognises(evidence: Evidence) -> bool:
    return evidence.dialect == "responses" and user_agent_version(evidence, _USER_AGENT) is not None


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    markers, known = of_version(MARKERS, user_agent_version(evidence, _USER_AGENT))
    kind = evidence.metadata.get("request_kind")
    is_subagent = evidence.metadata.get("thread_source") == markers.subagent
    parent = evidence.metadata.get("parent_thread_id")
    # The session is named after the main thread.
    is_nested = parent is not None and parent != evidence.metadata.get("session_id")
    return Classification(
        role=_role(evidence, kind, markers, is_subagent=is_subagent),
        harness=NAME,
        agent=evidence.metadata.get("thread_id") if is_subagent else None,
        parent_agent=parent if is_nested else None,
        known=known and kind in (markers.turn, markers.summary),
    )


def _role(evidence: Evidence, kind: str | None, markers: Markers, *, is_subagent: bool) -> CallRole:
    if kind == markers.summary:
        return "sub-agent-summary" if is_subagent else "main-summary"
    if kind != markers.turn and not evidence.tools:
        return "aux"
    return "sub-agent" if is_subagent else "main"
