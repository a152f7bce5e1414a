"""Scripts for flows: what the scripted engine says, by place in the conversation."""

from gyre.testing.script import Conversation, Script, ScriptedCall, ScriptedReply

WORDS = "the agent reads a file, changes a line, runs the tests and says what it found. "


def steps() -> Script:
    """Every turn is a sentence with its number and one tool call, without end."""

    def rule(conversation: Conversation) -> ScriptedReply:
        said = sum(turn.role == "assistant" for turn in conversation.turns)
        call = ScriptedCall(name="run", arguments={"command": f"step {said}"})
        return ScriptedReply(text=f"step {said}: {WORDS * 8}", reasoning="go on", calls=(call,))

    return Script(rules=(rule,))


def long() -> Script:
    """One reply of several hundred kilobytes, larger than any socket buffer."""
    return Script(rules=(lambda _: ScriptedReply(text=WORDS * 6000),))


def short() -> Script:
    """A few words and a tool call, for conversations of a thousand turns."""

    def rule(conversation: Conversation) -> ScriptedReply:
        said = sum(turn.role == "assistant" for turn in conversation.turns)
        return ScriptedReply(text=f"step {said}", calls=(ScriptedCall(name="run", arguments={}),))

    return Script(rules=(rule,))
