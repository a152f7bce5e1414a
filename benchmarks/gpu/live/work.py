"""What executions do in these runs: the paper's distribution of hours as seconds of real work.

Rule 1: how long executions and their assessments take is drawn as the simulator draws it, by seed,
group and member, so that a simulated run meets the work of a live one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.batching.task_sampler import TaskSampler
from gyre.simulator.workload import HOUR_S, NL2REPO_122B, WorkloadDraws
from gyre.testing import light_agent

MEAN_H = 1.93
"""Of an execution, as published."""
TOOL_SHARE = 0.3
"""Of an execution's time: its tools run, and no engine has anything to do for it."""
WORD_TOKENS = 3
"""Of a word that a tool says, under the tokenizer of these runs."""
CONTEXT = 16_384
"""Tokens that the models of these runs can read."""
AGENT_SHARE = 0.98
"""Of the overall deadline, until an agent is stopped."""
FOREVER_S = 3600.0
"""What an assessment takes that only the overall deadline ends."""

Turn = Mapping[str, float]
"""As the light agent reads it: tokens, tool_s and tool_words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How hours of the paper become seconds, tokens and calls here."""

    mean_s: float
    """Of an execution."""
    tokens_per_s: float
    """What an engine samples for each of its calls."""
    turn_s: float
    """Of a call with its tools, about."""
    told_fraction: float
    """Tokens that tools say for each token that is sampled."""

    @property
    def hour_s(self) -> float:
        return self.mean_s / MEAN_H

    @property
    def overall_s(self) -> float:
        """From its launch until it is closed, whatever is missing then."""
        return NL2REPO_122B.deadlines.overall_h * self.hour_s

    @property
    def agent_s(self) -> float:
        """Work is cut where the paper's harness is stopped; who is slower here may go on longer."""
        return AGENT_SHARE * self.overall_s

    @property
    def evaluations(self) -> dict[str, float]:
        """As a scenario's table has them, in hours of these runs."""
        found = NL2REPO_122B.evaluations
        return {
            "mean_h": found.mean_h * self.hour_s / HOUR_S,
            "sigma": found.sigma,
            "stuck_queries": found.stuck_queries,
            "stuck_within": found.stuck_within,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One of a group: its turns, and how long its assessment takes."""

    turns: tuple[Turn, ...]
    evaluation_s: float

    @property
    def num_tokens(self) -> float:
        """That it samples."""
        return sum(turn["tokens"] for turn in self.turns)

    @property
    def tool_s(self) -> float:
        return sum(turn["tool_s"] for turn in self.turns)


def work(scale: Scale, *, groups: int, members: int, seed: int) -> list[list[Execution]]:
    """The executions of each group, in the order in which a run admits groups."""
    draws = WorkloadDraws(NL2REPO_122B, seed=seed, group_size=members)
    found = []
    for number in range(groups):
        group = []
        for drawn in draws.group(number):
            # Cut where the paper's harness is stopped; what it had done by then is assessed.
            course = drawn.course(NL2REPO_122B.deadlines)
            seconds = course.rollout_s / HOUR_S * scale.hour_s
            evaluation_s = min(FOREVER_S, drawn.evaluation_s / HOUR_S * scale.hour_s)
            group.append(Execution(turns=_turns(scale, seconds), evaluation_s=evaluation_s))
        found.append(group)
    return found


def _turns(scale: Scale, seconds: float) -> tuple[Turn, ...]:
    number = max(1, round(seconds / scale.turn_s))
    tokens = max(1, round((1 - TOOL_SHARE) * seconds * scale.tokens_per_s / number))
    turn = {
        "tokens": tokens,
        "tool_s": round(TOOL_SHARE * seconds / number, 3),
        "tool_words": round(scale.told_fraction * tokens / WORD_TOKENS),
    }
    return (turn,) * number


def write_tasks(path: Path, groups: Sequence[Sequence[Execution]], *, seed: int) -> Path:
    """The file of tasks of a run whose n-th query is the n-th group."""
    queries = TaskSampler(len(groups), seed=seed)
    lines = [""] * len(groups)
    for group in groups:
        at = queries.draw()
        lines[at] = json.dumps(
            {
                "id": f"task-{at}",
                "instruction": json.dumps({"members": [list(one.turns) for one in group]}),
                "evaluation": {"argv": _check(group), "score": "reward.txt"},
            }
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


HARNESS = (
    "sh",
    "-c",
    'echo "$OPENAI_BASE_URL" > address; exec python3 -S -E "$0" "$1"',
    light_agent.__file__,
    "{instruction}",
)
"""Leaves the execution's address beside its replies, for whoever assesses it."""


def _check(group: Sequence[Execution]) -> list[Any]:
    """A score between 0 and 0.99 by what was replied, after the time that this member's takes."""
    times = " ".join(f"{one.evaluation_s:.3f}" for one in group)
    return [
        "sh",
        "-c",
        f"set -- {times}; "
        "name=$(sed 's|.*/exec/||; s|/.*||' address); number=${name##*[!0-9]}; "
        f"shift $((number % {len(group)})); sleep $1; "
        "cksum replies.txt | tr -dc 0-9 | tail -c 2 | sed s/^/0./ > $GYRE_RESULTS/reward.txt",
    ]
