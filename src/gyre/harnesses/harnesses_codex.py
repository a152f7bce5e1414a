"""Codex: a provider of its own that speaks Responses, and a window that it keeps to by itself."""

from gyre.harnesses.program import AgentProgram, ContextWindow, Npm

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
