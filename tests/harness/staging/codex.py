"""Codex, with a provider of its own that speaks Responses."""

from staging.program import Launch, Place, plain_environment

_CONFIG = """\
model = "policy"
model_provider = "gyre"
model_context_window = 200000
model_auto_compact_token_limit = {compact_at}
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.gyre]
name = "gyre"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "GYRE_KEY"

[agents]
max_threads = 2
max_depth = 2

[features]
plugins = false
apps = false

[analytics]
enabled = false
"""


def launch(place: Place, task: str) -> Launch:
    home = place.home / "codex"
    home.mkdir(parents=True, exist_ok=True)
    compact_at = place.options.get("compact_at", 180_000)
    (home / "config.toml").write_text(_CONFIG.format(url=place.url, compact_at=compact_at))
    flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Launch(
        arguments=["exec", *flags, task],
        environment=plain_environment(place) | {"CODEX_HOME": str(home), "GYRE_KEY": place.key},
    )
