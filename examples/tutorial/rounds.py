"""Rounds of post, as many as are asked for: `rounds.py:rounds?count=112&seed=0`."""

import json
import random
from pathlib import Path

from gyre.types.tasks import EvaluationRule, Task

TESTS = Path(__file__).parent / "tasks" / "post-1" / "tests"


def rounds(count: str = "112", seed: str = "0") -> list[Task]:
    """The same options give the same rounds, in every process that asks."""
    drawn = random.Random(int(seed))
    return [
        one_round(f"seed-{seed}-{number:03d}", "".join(drawn.choices("abcdef", k=4)))
        for number in range(int(count))
    ]


def one_round(name: str, right: str) -> Task:
    """Four letters in an inbox; where they belong is what only the judge is told."""
    files = Path("runs/rounds", name).absolute()
    for number, box in enumerate(right, 1):
        letter = files / "inbox" / f"{number}.json"
        letter.parent.mkdir(parents=True, exist_ok=True)
        letter.write_text(json.dumps({"place": box}, separators=(",", ":")))
    evaluation = EvaluationRule(
        argv=("sh", "-c", 'exec sh "$GYRE_EVALUATION/test.sh"'),
        files=str(TESTS.absolute()),
        variables={"RIGHT": right},
        reward_key="sorted",
        gate="once",
        attempt_s=30.0,
    )
    return Task(
        id=name,
        instruction="Put each text in its place.",
        files=str(files),
        evaluation=evaluation,
    )
