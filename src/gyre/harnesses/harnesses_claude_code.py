"""Claude Code: patient with slow replies, and quiet about everything but its work."""

from gyre.harnesses.program import AgentProgram, ContextWindow, Npm

LEAST_WINDOW = 100_000
"""It takes a smaller window for this one, so that it is better told none: when a prompt does not
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
        # As root it refuses to run without permissions asked, unless it is told of a sandbox.
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
