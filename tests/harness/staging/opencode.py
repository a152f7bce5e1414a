"""opencode, with a provider of its own that speaks Chat Completions."""

from staging.program import Launch, Place, plain_environment, write_json

_QUIET = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")


def launch(place: Place, task: str) -> Launch:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": place.key},
        "models": {
            "policy": {"limit": {"context": place.options.get("context", 131_072), "output": 4096}},
            "policy-small": {},
        },
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
    write_json(place.home / ".config" / "opencode" / "opencode.json", config)
    quiet = {f"OPENCODE_DISABLE_{name}": "1" for name in _QUIET}
    return Launch(
        arguments=["run", "--format", "json", task],
        environment=plain_environment(place) | quiet,
    )
