"""Everything Gyre knows of mini-swe-agent: install, launch, call roles."""

from collections.abc import Container

from gyre.harnesses.program import AgentProgram, ContextWindow, Pip
from gyre.types.call_records import Classification, Evidence

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


NAME = "mini-swe-agent"

SYSTEM = "You are a helpful assistant that can interact"
"""How the system text of every configuration shipped with 2.4.6 begins. A user may write another;
then the generic rule gives the same class."""
TOOLS = (("bash",), ())
"""Its tool, or none where commands are written as text."""


def recognises(evidence: Evidence) -> bool:
    is_its_own = evidence.tools in TOOLS and evidence.system.startswith(SYSTEM)
    return evidence.dialect == "chat" and is_its_own


def classify(evidence: Evidence, subagents: Container[str]) -> Classification:
    return Classification(role="main", harness=NAME)
