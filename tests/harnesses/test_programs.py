"""What each agent program is told, and that it is known everywhere where it should be."""

import json
import tomllib
from typing import get_args, get_type_hints

import pytest

from gyre.config.run_config import HarnessConfig
from gyre.harnesses import claude_code, codex, opencode, qwen_code
from gyre.harnesses.program import ContextWindow, Npm
from gyre.harnesses.registry import PROGRAMS, locked_versions

WIDE = ContextWindow(context_tokens=200_000, compact_at=150_000)
NARROW = ContextWindow(context_tokens=32_000, compact_at=24_000)
MARKERS = {
    "claude_code": claude_code.MARKERS,
    "codex": codex.MARKERS,
    "opencode": opencode.MARKERS,
    "qwen_code": qwen_code.MARKERS,
}
"""Role markers by version; mini-swe-agent has one role, and none."""


def home_of(name, window):
    (text,) = PROGRAMS[name].home(window).values()
    return text


def test_run_files_can_name_every_program():
    kinds = get_args(get_type_hints(HarnessConfig)["kind"])

    assert {"command", *PROGRAMS} == set(kinds)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pinned_version_has_a_lock(name):
    assert PROGRAMS[name].version in locked_versions(PROGRAMS[name])


@pytest.mark.parametrize("name", MARKERS)
def test_roles_are_known_of_every_version_with_a_lock(name):
    assert set() == set(locked_versions(PROGRAMS[name])) - set(MARKERS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_instruction_comes_last_and_cannot_be_taken_for_an_option(name):
    """A bare -- before it, or in one argument with its option, or as the value of one."""
    *before, last = PROGRAMS[name].task

    assert last.endswith("{instruction}")
    assert before in (["--"], ["--task"]) or last.startswith("--prompt=")


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_file_holds_the_key(name):
    """They stay when the execution has ended."""
    program = PROGRAMS[name]

    assert not any("{key}" in text for text in program.home(WIDE).values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_packages_are_of_the_version_that_is_asked_for(name):
    source = PROGRAMS[name].source
    wanted = source.packages.values() if isinstance(source, Npm) else source.requirements

    assert 1 == sum("{version}" in one for one in wanted)


def test_claude_code_is_told_of_a_window_only_where_it_keeps_to_it():
    told = PROGRAMS["claude_code"].variables

    assert "200000" == told(WIDE)["CLAUDE_CODE_AUTO_COMPACT_WINDOW"]
    assert "CLAUDE_CODE_AUTO_COMPACT_WINDOW" not in told(NARROW)


def test_codex_sums_up_before_its_window_is_full():
    config = tomllib.loads(home_of("codex", NARROW))

    assert (32_000, 24_000) == (
        config["model_context_window"],
        config["model_auto_compact_token_limit"],
    )
    assert "{url}/v1" == config["model_providers"]["gyre"]["base_url"]


def test_opencode_leaves_room_for_a_reply():
    config = json.loads(home_of("opencode", NARROW))
    provider = config["provider"]["gyre"]

    assert {"context": 32_000, "output": 8_000} == provider["models"]["policy"]["limit"]
    assert "{url}/v1" == provider["options"]["baseURL"]


def test_qwen_code_sums_up_at_a_share_of_its_window():
    settings = json.loads(home_of("qwen_code", NARROW))

    assert 32_000 == settings["model"]["generationConfig"]["contextWindowSize"]
    assert 0.75 == settings["context"]["autoCompactThreshold"]


@pytest.mark.parametrize(
    ("context", "reply", "expected"),
    [(100_000, 4_000, 90_000), (100_000, 30_000, 70_000), (4_096, 8_192, 2_048), (1, 1, 1)],
)
def test_a_conversation_is_summed_up_with_room_for_a_reply(context, reply, expected):
    assert expected == ContextWindow.of(context_tokens=context, reply_tokens=reply).compact_at
