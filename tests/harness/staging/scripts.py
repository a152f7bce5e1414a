"""What the scripted policy says to each program, by place in the conversation."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gyre.testing.script import (
    Conversation,
    Json,
    Rule,
    Script,
    ScriptedCall,
    ScriptedReply,
    Where,
    after,
)

Shell = Callable[[str], ScriptedCall]
Delegate = Callable[[str], ScriptedCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """One agent's part: what it says after the marker appears in its conversation."""

    marker: str
    lines: tuple[ScriptedReply, ...]
    where: Where = "anywhere"

    @property
    def rule(self) -> Rule:
        return after(self.marker, *self.lines, where=self.where)


def spoken_by(*voices: Voice) -> Script:
    return Script([one.rule for one in voices])


def call(name: str, **arguments: Json) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


# What each program calls its shell and its sub-agents.


def claude_shell(command: str) -> ScriptedCall:
    # Out of the schema's order and oddly spaced: it comes back in order and compact (T12).
    arguments = f'{{"description":  "look", "command": {json.dumps(command)}}}'
    return ScriptedCall(name="Bash", arguments=arguments)


def claude_agent(prompt: str) -> ScriptedCall:
    return call("Agent", prompt=prompt, description="work", run_in_background=False)


def claude_fork(prompt: str) -> ScriptedCall:
    """A sub-agent that knows all that was said so far."""
    ours: dict[str, Json] = {"subagent_type": "fork", "run_in_background": False}
    return call("Agent", prompt=prompt, description="work", **ours)


def codex_shell(command: str) -> ScriptedCall:
    # The longest that it waits for a command; by default 10 s.
    return call("exec_command", cmd=command, yield_time_ms=30_000)


def opencode_shell(command: str) -> ScriptedCall:
    return call("bash", command=command, description="look")


def opencode_agent(prompt: str) -> ScriptedCall:
    return call("task", prompt=prompt, description="work", subagent_type="general")


def qwen_shell(command: str) -> ScriptedCall:
    # It loses output that arrives together with the end of the command.
    return call("run_shell_command", command=f"{command}; sleep 0.5", is_background=False)


def qwen_agent(prompt: str) -> ScriptedCall:
    ours: dict[str, Json] = {"subagent_type": "general-purpose", "run_in_background": False}
    return call("agent", prompt=prompt, description="work", **ours)


def mini_shell(command: str) -> ScriptedCall:
    return call("bash", command=command)


# Tool use over several turns.

TASK = "HERON-MAIN"


def worker(shell: Shell, *more: ScriptedReply) -> Voice:
    """Thinks, reads the nonce, does two things at once, and ends."""
    return Voice(
        marker=TASK,
        lines=(
            ScriptedReply(
                reasoning="A look at the file comes first.",
                text="Reading it.",
                calls=(shell("cat nonce.txt"),),
            ),
            ScriptedReply(calls=(shell("rev nonce.txt"), shell("wc -c nonce.txt"))),
            *more,
            ScriptedReply(text="All done."),
        ),
    )


WORKERS: Mapping[str, Voice] = {
    "claude": worker(
        claude_shell,
        # Blanks at line ends are lost on the way back (T12).
        ScriptedReply(calls=(call("Write", file_path="note.txt", content="a  \nb \n"),)),
    ),
    "codex": worker(codex_shell),
    "opencode": worker(opencode_shell),
    "qwen": worker(qwen_shell),
}


TITLE = Voice(marker="title generator", lines=(ScriptedReply(text="A heron"),), where="system")
"""opencode asks for one before anything else."""

MINI = (
    # It drops a reply without a tool call and says only what was wrong with it.
    Voice(
        marker="No tool calls found",
        lines=(ScriptedReply(calls=(mini_shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),)),),
    ),
    worker(mini_shell),
)


def claude_worker() -> Script:
    return spoken_by(WORKERS["claude"])


READER = Voice(
    marker=TASK,
    lines=(
        ScriptedReply(text="Making it.", calls=(claude_shell("seq 1 20000 > long.txt"),)),
        ScriptedReply(text="Reading it.", calls=(call("Read", file_path="long.txt"),)),
        ScriptedReply(text="Searching.", calls=(call("WebSearch", query="herons in winter"),)),
        ScriptedReply(text="All done."),
    ),
)
SEARCHER = Voice(
    marker="query: herons in winter", lines=(ScriptedReply(text="Nothing was found."),)
)
"""Claude Code has the model search, in a conversation of its own without client tools."""


def claude_reader() -> Script:
    return spoken_by(SEARCHER, READER)


def codex_worker() -> Script:
    return spoken_by(WORKERS["codex"])


def opencode_worker() -> Script:
    return spoken_by(TITLE, WORKERS["opencode"])


def qwen_worker() -> Script:
    return spoken_by(WORKERS["qwen"])


def mini_worker() -> Script:
    return spoken_by(*MINI)


# Sub-agents: three at once where two may run, then one that starts another.

ALPHA, BRAVO, CHARLIE = "HERON-ALPHA", "HERON-BRAVO", "HERON-CHARLIE"
DELTA, ECHO = "HERON-DELTA", "HERON-ECHO"


def errand(marker: str, shell: Shell) -> Voice:
    """A sub-agent that looks at the nonce and reports."""
    look = ScriptedReply(text="Looking.", calls=(shell("cat nonce.txt"),))
    return Voice(marker=marker, lines=(look, ScriptedReply(text="The errand is done.")))


def family(shell: Shell, agent: Delegate, *, at_once: tuple[str, ...]) -> tuple[Voice, ...]:
    """A main agent with errands `at_once`, then Charlie, then Delta, who sends Echo."""
    return (
        errand(ECHO, shell),
        Voice(
            marker=DELTA,
            lines=(
                ScriptedReply(text="This takes two.", calls=(agent(ECHO),)),
                ScriptedReply(text="Both errands are done."),
            ),
        ),
        errand(ALPHA, shell),
        errand(BRAVO, shell),
        errand(CHARLIE, shell),
        Voice(
            marker=TASK,
            lines=(
                ScriptedReply(text="Sending.", calls=tuple(agent(name) for name in at_once)),
                ScriptedReply(calls=(agent(CHARLIE),)),
                ScriptedReply(calls=(agent(DELTA),)),
                ScriptedReply(text="All done."),
            ),
        ),
    )


def claude_family() -> Script:
    return spoken_by(*family(claude_shell, claude_agent, at_once=(ALPHA, BRAVO, CHARLIE)))


FORK = (
    errand(ALPHA, claude_shell),
    Voice(
        marker=TASK,
        lines=(
            ScriptedReply(text="Reading it.", calls=(claude_shell("rev nonce.txt"),)),
            ScriptedReply(calls=(claude_fork(ALPHA),)),
            ScriptedReply(text="All done."),
        ),
    ),
)


def claude_forking() -> Script:
    return spoken_by(*FORK)


def opencode_family() -> Script:
    return spoken_by(TITLE, *family(opencode_shell, opencode_agent, at_once=(ALPHA, BRAVO)))


def qwen_family() -> Script:
    return spoken_by(*family(qwen_shell, qwen_agent, at_once=(ALPHA, BRAVO)))


_SPAWNED = re.compile(r'"agent_id":"([0-9a-f-]+)"')


def codex_agent(prompt: str) -> ScriptedCall:
    return call("multi_agent_v1.spawn_agent", message=prompt)


def codex_waits(agent: str) -> ScriptedCall:
    return call("multi_agent_v1.wait_agent", targets=[agent], timeout_ms=1_800_000)


def codex_closes(agent: str) -> ScriptedCall:
    return call("multi_agent_v1.close_agent", target=agent)


def spawned(conversation: Conversation) -> list[str]:
    """Ids of the sub-agents that Codex has said it started, in order."""
    return _SPAWNED.findall("\n".join(turn.text for turn in conversation.turns))


def codex_main(conversation: Conversation) -> ScriptedReply | None:
    """Codex's sub-agents are waited for by id, and count against the limit until closed."""
    said = conversation.replies_since(TASK)
    if said is None:
        return None
    ids = [*spawned(conversation), *[""] * 4]
    parts: tuple[tuple[ScriptedCall, ...], ...] = (
        (codex_agent(ALPHA), codex_agent(BRAVO), codex_agent(CHARLIE)),
        (codex_waits(ids[0]),),
        (codex_waits(ids[1]),),
        (codex_closes(ids[0]), codex_closes(ids[1])),
        (codex_agent(CHARLIE),),
        (codex_waits(ids[2]),),
        (codex_closes(ids[2]),),
        (codex_agent(DELTA),),
        (codex_waits(ids[3]),),
    )
    return (
        ScriptedReply(calls=parts[said]) if said < len(parts) else ScriptedReply(text="All done.")
    )


def codex_delta(conversation: Conversation) -> ScriptedReply | None:
    said = conversation.replies_since(DELTA)
    if said is None:
        return None
    ids = [*spawned(conversation), ""]
    parts = ((codex_agent(ECHO),), (codex_waits(ids[0]),))
    return (
        ScriptedReply(calls=parts[said])
        if said < len(parts)
        else ScriptedReply(text="Both errands are done.")
    )


def codex_family() -> Script:
    errands = [errand(marker, codex_shell) for marker in (ALPHA, BRAVO, CHARLIE, ECHO)]
    return Script([*(one.rule for one in errands), codex_delta, codex_main])


# Compaction: listings fill the window, the summary names itself, and the work goes on.

SUMMARY, RESUMED = "HERON-SUMMARY", "HERON-RESUMED"


def listing(first: int, last: int) -> str:
    return f"seq -s , {first} {last}"


def compacting(
    marker: str,
    shell: Shell,
    *,
    asks: Voice,
    new_start: str = SUMMARY,
    listings: tuple[str, ...] = (listing(1, 5000),),
) -> tuple[Rule, ...]:
    """An agent whose conversation is summed up, in which `new_start` appears from then on."""
    fills = (ScriptedReply(text="Listing.", calls=(shell(command),)) for command in listings)
    looks = ScriptedReply(text="Reading it.", calls=(shell("cat nonce.txt"),))
    more = ScriptedReply(text="Once more.", calls=(shell("rev nonce.txt"),))
    goes_on = ScriptedReply(text="Going on.", calls=(shell(f"echo {RESUMED}; cat nonce.txt"),))

    def resumes(conversation: Conversation) -> ScriptedReply | None:
        # Earlier turns may be carried over beside the summary, so they are not counted.
        return None if conversation.replies_since(new_start) is None else goes_on

    return (
        asks.rule,
        after(RESUMED, ScriptedReply(text="All done.")),
        resumes,
        after(marker, looks, *fills, more),
    )


CLAUDE_ASKS = Voice(
    marker="CRITICAL: Respond with TEXT ONLY",
    lines=(
        ScriptedReply(text=f"<analysis>a</analysis>\n<summary>{SUMMARY}: it was read.</summary>"),
    ),
    where="last user",
)


def claude_compacting() -> Script:
    return Script(compacting(TASK, claude_shell, asks=CLAUDE_ASKS))


def claude_overflowing() -> Script:
    """No listing is so long that it could not be carried over."""
    several = (listing(1, 1200), listing(1201, 2300), listing(2301, 3400))
    return Script(compacting(TASK, claude_shell, asks=CLAUDE_ASKS, listings=several))


def claude_compacting_errand() -> Script:
    return Script([*compacting(ALPHA, claude_shell, asks=CLAUDE_ASKS), sends(claude_agent)])


def sends(agent: Delegate) -> Rule:
    """A main agent with one errand."""
    return after(
        TASK, ScriptedReply(text="Sending.", calls=(agent(ALPHA),)), ScriptedReply(text="All done.")
    )


CODEX_ASKS = Voice(
    marker="CONTEXT CHECKPOINT COMPACTION",
    lines=(ScriptedReply(text=f"{SUMMARY}: it was read."),),
    where="last user",
)


def codex_compacting() -> Script:
    return Script(compacting(TASK, codex_shell, asks=CODEX_ASKS))


def codex_compacting_errand() -> Script:
    def main(conversation: Conversation) -> ScriptedReply | None:
        said = conversation.replies_since(TASK)
        ids = [*spawned(conversation), ""]
        parts = ((codex_agent(ALPHA),), (codex_waits(ids[0]),))
        if said is None or said >= len(parts):
            return None if said is None else ScriptedReply(text="All done.")
        return ScriptedReply(calls=parts[said])

    return Script([*compacting(ALPHA, codex_shell, asks=CODEX_ASKS), main])


QWEN_ASKS = Voice(
    marker="You are the component that summarizes",
    lines=(ScriptedReply(text=f"<state_snapshot>{SUMMARY}: it was read.</state_snapshot>"),),
    where="last user",
)


def qwen_compacting() -> Script:
    return Script(compacting(TASK, qwen_shell, asks=QWEN_ASKS))


def qwen_compacting_errand() -> Script:
    return Script([*compacting(ALPHA, qwen_shell, asks=QWEN_ASKS), sends(qwen_agent)])


OPENCODE_ASKS = Voice(
    marker="context summarization agent",
    lines=(ScriptedReply(text="It was read."),),
    where="system",
)
OPENCODE_STARTS = "What did we do so far?"
"""Its summary comes back as a turn of the assistant's, so other words mark the new start."""


def opencode_compacting() -> Script:
    work = compacting(TASK, opencode_shell, asks=OPENCODE_ASKS, new_start=OPENCODE_STARTS)
    return Script([TITLE.rule, *work])


def opencode_compacting_errand() -> Script:
    work = compacting(ALPHA, opencode_shell, asks=OPENCODE_ASKS, new_start=OPENCODE_STARTS)
    return Script([TITLE.rule, *work, sends(opencode_agent)])


# One thing done, for executions that are judged by what they leave.

ANSWER = "answer.txt"


def doer(shell: Shell, end: ScriptedReply) -> Voice:
    """Reads the nonce, leaves it reversed, and ends."""
    return Voice(
        marker=TASK,
        lines=(
            ScriptedReply(text="Reading it.", calls=(shell("cat nonce.txt"),)),
            ScriptedReply(calls=(shell(f"rev nonce.txt > {ANSWER}"),)),
            end,
        ),
    )


DOERS: Mapping[str, Voice] = {
    "claude_code": doer(claude_shell, ScriptedReply(text="All done.")),
    "codex": doer(codex_shell, ScriptedReply(text="All done.")),
    "mini_swe_agent": doer(
        mini_shell, ScriptedReply(calls=(mini_shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),))
    ),
}


def claude_code_doer() -> Script:
    return spoken_by(DOERS["claude_code"])


def codex_doer() -> Script:
    return spoken_by(DOERS["codex"])


def mini_swe_agent_doer() -> Script:
    return spoken_by(DOERS["mini_swe_agent"])
