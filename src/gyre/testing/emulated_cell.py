"""A cell, and a whole run, that take time instead of computing.

An agent says in its last user message how long the reply takes: `{"reply_s": 0.35}`, and if the
reply should be longer than a few words also how many it has: `{"reply_s": 0.35, "words": 200}`.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gyre.config.sections import EngineConfig, LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.testing import light_agent
from gyre.testing.script import Conversation, Script, ScriptedReply
from gyre.testing.timed_engine import ENGINE_OPTIONS, TimedEngine, playing
from gyre.testing.timed_script import TimedReply, number, refuse_unknown
from gyre.trainer.logprobs import check_claim
from gyre.trainer.trainer import BACKWARD, Trainer
from gyre.types.errors import CellError
from gyre.types.training import Claim, ClaimReport, Measures, Score, Work

WORDS = 4
"""Of a reply whose agent does not say how many."""
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SAID = re.compile(
    rf'\{{\s*"reply_s":\s*({_NUMBER})\s*(?:,\s*"words":\s*([0-9]+)\s*)?\}}',
)


def script() -> Script:
    """Every reply is a few words and takes the time that the last user message says."""
    return Script([_reply])


def _reply(conversation: Conversation) -> ScriptedReply:
    said = [turn.text for turn in conversation.turns if turn.role == "user"][-1:]
    found = _SAID.findall(said[0]) if said else []
    number_of_reply = sum(turn.role == "assistant" for turn in conversation.turns)
    if not found:
        return ScriptedReply(text=_text(number_of_reply, WORDS))
    reply_s, words = found[-1]
    text = _text(number_of_reply, int(words) if words else WORDS)
    return TimedReply(text=text, reply_s=float(reply_s))


def _text(number_of_reply: int, num_words: int) -> str:
    return " ".join(["step", str(number_of_reply), *["done"] * max(0, num_words - 2)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCost:
    """How long a claim takes."""

    base_s: float = 0.0
    token_s: float = 0.0
    """Of each token of its packs."""

    def train_s(self, claim: Claim) -> float:
        return self.base_s + self.token_s * sum(pack.num_tokens for pack in claim.packs)

    def score_s(self, claim: Claim) -> float:
        """Forward passes alone."""
        return self.train_s(claim) / (1.0 + BACKWARD)


class EmulatedTrainer(Trainer):
    """A trainer that sleeps where it would compute; all else is real, and its sum stays zero."""

    def __init__(self, *given: Any, cost: ClaimCost | None = None, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._cost = ClaimCost() if cost is None else cost

    def score(self, claim: Claim) -> tuple[Score, ...]:
        """Ratios of one, as of weights that have not moved."""
        self._check(claim)
        time.sleep(self._cost.score_s(claim))
        return _even(claim)

    def train(
        self, claim: Claim, *, num_executions: int, scores: Sequence[Score] | None = None
    ) -> ClaimReport:
        """Takes its time and adds nothing; the report says so."""
        self._check(claim)
        began_s = time.perf_counter()
        time.sleep(self._cost.train_s(claim))
        return ClaimReport(
            loss=0.0,
            scores=_even(claim) if scores is None else tuple(scores),
            measures=_measures(claim),
            work=_work(claim, time.perf_counter() - began_s),
        )

    def _check(self, claim: Claim) -> None:
        if self.is_resting:
            raise CellError("the trainer rests: restore it first")
        check_claim(claim, self.network)


def engine(
    network: Network,
    *,
    name: str,
    section: EngineConfig,
    folder: Path,
    options: Mapping[str, str],
) -> TimedEngine:
    """Replies take what agents say, else `reply_s` or `tokens_per_s`, all times `scale`."""
    refuse_unknown(options, ENGINE_OPTIONS)
    return playing(script(), network, name=name, section=section, folder=folder, options=options)


def trainer(
    network: Network,
    *,
    section: TrainerConfig,
    objective: LossConfig,
    optimizer: OptimizerConfig | None,
    temperature: float,
    options: Mapping[str, str],
) -> EmulatedTrainer:
    """A claim takes `base_s` and `token_s` for each of its tokens, times `scale`."""
    refuse_unknown(options, ("base_s", "scale", "token_s"))
    scale = number(options, "scale", 1.0)
    return EmulatedTrainer(
        network,
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
        cost=ClaimCost(
            base_s=number(options, "base_s", 0.0) * scale,
            token_s=number(options, "token_s", 0.0) * scale,
        ),
    )


def _even(claim: Claim) -> tuple[Score, ...]:
    return tuple(Score(sum_log_ratio=0.0, count=share.num_targets) for share in claim.shares)


def _measures(claim: Claim) -> Measures:
    """Of ratios of one: every target is there, and none is clipped or capped."""
    num_targets = sum(pack.num_targets for pack in claim.packs)
    return Measures(
        num_targets=num_targets,
        num_capped=0,
        num_raised=sum(share.num_targets for share in claim.shares if share.advantage > 0),
        num_raised_clipped=0,
        num_lowered=sum(share.num_targets for share in claim.shares if share.advantage < 0),
        num_lowered_clipped=0,
        sum_ratio=float(num_targets),
        max_gap=0.0 if num_targets else None,
    )


def _work(claim: Claim, took_s: float) -> Work:
    """All packs are skipped: nothing went backward, and no arithmetic was done."""
    return Work(
        num_packs=len(claim.packs),
        num_skipped=len(claim.packs),
        num_tokens=sum(pack.num_tokens for pack in claim.packs),
        num_padding=0,
        num_targets=sum(pack.num_targets for pack in claim.packs),
        model_flops=0.0,
        forward_s=took_s,
        backward_s=0.0,
    )


CHECK = (
    "sh",
    "-c",
    "cksum replies.txt | tr -dc 0-9 | tail -c 2 | sed s/^/0./ > $GYRE_RESULTS/reward.txt",
)
"""A score between 0 and 0.99 that differs from one execution to the next."""
LONGEST = 5.0
"""Times the mean that an execution takes at most."""

Turn = Mapping[str, float]
"""As the light agent reads it: reply_s, tool_s and words."""


def workload(*, tasks: int, members: int, seed: int, mean_s: float) -> list[list[list[Turn]]]:
    """By task and member the turns of an execution; times have a long tail, and so have lengths."""
    rng = Random(f"{seed}/workload")
    return [[_turns(rng, mean_s) for _ in range(members)] for _ in range(tasks)]


def _turns(rng: Random, mean_s: float) -> list[Turn]:
    total_s = mean_s * min(LONGEST, rng.lognormvariate(-0.25, 0.7))
    number = rng.randint(2, 4)
    reply_s, tool_s = (round(part * total_s / number, 3) for part in (0.7, 0.3))
    return [{"reply_s": reply_s, "tool_s": tool_s, "words": rng.randint(8, 24)}] * number


def write_tasks(path: Path, work: Sequence[Sequence[Sequence[Turn]]]) -> Path:
    """The file of tasks that a run reads."""
    lines = [
        json.dumps(
            {
                "id": f"task-{number}",
                "instruction": json.dumps({"members": members}),
                "evaluation": {"argv": CHECK, "score": "reward.txt"},
            }
        )
        for number, members in enumerate(work)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


TABLES: Mapping[str, Mapping[str, Any]] = {
    "model": {"name": "tiny"},
    "cells": {
        "count": 4,
        "capacity": 5,
        "engine": "gyre.testing.emulated_cell:engine",
        "trainer": "gyre.testing.emulated_cell:trainer?base_s=0.3",
    },
    "engine": {"kv_tokens": 16384},
    "harness": {"argv": ["python3", "-S", "-E", light_agent.__file__, "{instruction}"]},
    "deadlines": {"agent_s": 600.0, "overall_s": 900.0},
    "sampling": {"max_tokens": 64},
    "proxy": {"port": 0},
    "trainer": {"pack_tokens": 160, "claim_packs": 1},
    "sandbox": {"kind": "process"},
    "trackers": {"tensorboard": False},
}
"""What such a run needs, besides [run], [schedule] and [tasks]."""


def tables(
    folder: Path, tasks: Path, *given: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The tables of a run in a folder, with those given put over them, key by key."""
    found: dict[str, dict[str, Any]] = {name: dict(one) for name, one in TABLES.items()}
    found["run"] = {"name": "emulated", "folder": str(folder)}
    found["tasks"] = {"kind": "jsonl", "path": str(tasks)}
    for change in given:
        for name, table in change.items():
            found.setdefault(name, {}).update(table)
    return found
