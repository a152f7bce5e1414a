"""opencode: a provider of its own that speaks Chat Completions, and everything allowed."""

import json

from gyre.harnesses.program import AgentProgram, ContextWindow, Npm

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
