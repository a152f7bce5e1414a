"""mini-swe-agent: no price table, no first-run questions, no limit on what it thinks it spends."""

from gyre.harnesses.program import AgentProgram, ContextWindow, Pip

_PYTHON = "venv/bin/python"
_VERSION = "import importlib.metadata as m; print(m.version('mini-swe-agent'))"


def _variables(window: ContextWindow) -> dict[str, str]:
    return {
        # Otherwise it asks the web for prices.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
    }


PROGRAM = AgentProgram(
    name="mini_swe_agent",
    version="2.4.6",
    # Its litellm imports mcp without declaring it.
    source=Pip(requirements=("mini-swe-agent=={version}", "mcp")),
    start=(_PYTHON, "-m", "minisweagent.run.mini"),
    flags=("--model", "openai/policy", "--yolo", "--exit-immediately", "--cost-limit", "0"),
    task=("--task", "{instruction}"),
    variables=_variables,
    # It has no --version, so its package is asked.
    starts_version=(_PYTHON,),
    asks_version=("-c", _VERSION),
)
