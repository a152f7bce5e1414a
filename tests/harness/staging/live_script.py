"""What the policy says to every execution of a live run: long replies, each by its own name."""

import os
import re
from pathlib import Path
from random import Random

from gyre.testing.script import Conversation, Json, Script, ScriptedCall, ScriptedReply
from gyre.testing.timed_script import TimedReply

ASKED = "HERON-LIVE"
"""In every task's instruction."""
ERRAND = "HERON-ERRAND"
"""In what each sub-agent is told, before the execution's name and a number."""
MEMBERS = 2
"""Executions of a group; their scores differ."""
ERRANDS = 3
"""Sub-agents of an execution, which speak at the same time."""
ERRAND_S = 0.5
"""Of every second group the second half waits for a file, so that while the others are trained
these are in the middle of it."""
FOLDER = "GYRE_LIVE_RELEASED"
"""Variable of the environment: where the files are; without it nobody waits."""
SEEN = "GYRE_LIVE_SEEN"
"""Variable of the environment: where a file by the name of each execution is whose process was
seen, for which its first reply waits; without it nobody waits."""
_WORKS_IN = re.compile(r"/attempts/(g(\d+)-(\d+))/workspace")
_SENT = re.compile(rf"{ERRAND} (g(\d+)-\d+ \d)")
_PROSE = (
    "the water of a river turns around what stands in it and goes on with what it has taken "
    "from one bank to the other while herons look for fish near stones that nobody has moved"
)


def begun(name: str) -> str:
    """The file that is there once an errand was asked for."""
    return f"begun {name}"


def middle(group: int) -> str:
    """The file that is there once all errands of a group were asked for."""
    return f"middle {group}"


def shared(step: int) -> str:
    """The file that is there once the cells that are to share a step's batch train."""
    return f"shared {step}"


def main_lines(name: str, member: int, group: int) -> tuple[ScriptedReply, ...]:
    """What the agent of an execution says: a look, errands all at once, and an end.

    Of the groups that are trained first the end waits for the errands of those that are not.
    """
    rng = Random(name)
    seen, folder = os.environ.get(SEEN), os.environ.get(FOLDER)
    score = (1 + member) / (1 + MEMBERS)
    looks = f"echo {score:.3f} > score.txt; cat nonce.txt"
    sends = (
        _call("Agent", prompt=f"{ERRAND} {name} {number}", run_in_background=False)
        for number in range(ERRANDS)
    )
    return (
        TimedReply(
            reasoning=_prose(rng, 20),
            text=_prose(rng, 40),
            calls=(_call("Bash", command=looks),),
            reply_s=0.2,
            until=Path(seen) / name if seen else None,
        ),
        TimedReply(text=_prose(rng, 10), calls=tuple(sends), reply_s=0.2),
        TimedReply(
            text=f"{_prose(rng, 40)} All done.",
            reply_s=0.2,
            until=Path(folder) / middle(group + 1) if folder and not group % 2 else None,
        ),
    )


def errand_line(name: str, group: int) -> ScriptedReply:
    """All that a sub-agent says."""
    rng = Random(name)
    folder = os.environ.get(FOLDER)
    until = Path(folder) / str(group) if folder and group % 2 else None
    if folder:
        (Path(folder) / begun(name)).touch()
    return TimedReply(text=_prose(rng, rng.randint(150, 400)), reply_s=ERRAND_S, until=until)


def _call(tool: str, **arguments: Json) -> ScriptedCall:
    return ScriptedCall(name=tool, arguments={"description": "work", **arguments})


def _prose(rng: Random, num_words: int) -> str:
    return " ".join(rng.choices(_PROSE.split(), k=num_words))


def _errand(conversation: Conversation) -> ScriptedReply | None:
    name = _named(conversation, _SENT)
    if name is None or conversation.replies_since(ERRAND):
        return None
    return errand_line(name[1], int(name[2]))


def _main(conversation: Conversation) -> ScriptedReply | None:
    name, said = _named(conversation, _WORKS_IN), conversation.replies_since(ASKED)
    if name is None or said is None:
        return None
    lines = main_lines(name[1], int(name[3]), int(name[2]))
    return lines[said] if said < len(lines) else None


def _named(conversation: Conversation, pattern: re.Pattern[str]) -> re.Match[str] | None:
    heard = (turn.text for turn in conversation.turns if turn.role != "assistant")
    return next((found for text in heard if (found := pattern.search(text))), None)


def live() -> Script:
    return Script([_errand, _main])
