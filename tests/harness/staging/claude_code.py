"""Claude Code, told where the proxy is and to be quiet about everything else."""

from staging.program import Launch, Place, plain_environment

_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
_PATIENCE_MS = (
    "API_TIMEOUT_MS",
    "CLAUDE_STREAM_IDLE_TIMEOUT_MS",
    "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS",
)


def launch(place: Place, task: str) -> Launch:
    environment = plain_environment(place) | {
        # As root it refuses to run without permissions asked, unless it is told of a sandbox.
        "IS_SANDBOX": "1",
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": place.key,
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Without this the three limits below are ignored.
        "API_FORCE_IDLE_TIMEOUT": "0",
        # Otherwise newer versions change the tool list in the middle of a conversation.
        "ENABLE_TOOL_SEARCH": "false",
        "CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS": "2",
    }
    environment |= dict.fromkeys(_MODELS, "policy") | dict.fromkeys(_PATIENCE_MS, "1800000")
    return Launch(
        arguments=["-p", task, "--output-format", "json", "--dangerously-skip-permissions"],
        environment=environment,
    )
