"""A model that reads every letter and does every job right, but deletes only when asked twice."""

from random import Random

from benchmarks.gpu.learn import agent
from benchmarks.gpu.learn.tasks import jobs_of

from gyre.testing.script import Conversation, Script, ScriptedReply

SEED, LETTERS = "scripted", 6


def commands() -> dict[str, str]:
    """By what is asked: what does it, of the first task of the seed."""
    return {job.asked: job.command for job in jobs_of(Random(f"{SEED}/letters"), LETTERS)}


def right() -> Script:
    return Script([_rule])


def _rule(conversation: Conversation) -> ScriptedReply:
    system, last = conversation.turns[0].text, conversation.turns[-1].text
    if system.strip() == agent.HELPER:
        asked = last.rpartition(": ")[2].strip()
        if asked.startswith("delete") and agent.REFUSED not in last:
            return ScriptedReply(text="I will.")
        return ScriptedReply(text=commands()[asked])
    if agent.SUM_UP in last:
        return ScriptedReply(text="Some jobs are done.")
    return ScriptedReply(text=last.rpartition("P.S. Please ")[2].strip().removesuffix("."))
