"""What a scripted engine says to `examples/agent.py`, place by place."""

from gyre.testing.script import Json, Script, ScriptedCall, ScriptedReply, after

READER = "You are a reader"
SUMMARISE = "Summarise the work so far"
GO_ON = "Summary of the work so far"
"""How the agent's own texts begin, by which its calls are told apart."""
TASK = (
    "Write report.txt: the number of words of each note in this folder, longest first, "
    "and then a line on what the longest is about."
)
QUESTION = "What is the longest of the notes about? Answer in one line."
ANSWER = "It tells what happened in one year, month by month."
DONE = "The report is written."


def call(name: str, **arguments: Json) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def run(command: str) -> ScriptedCall:
    return call("run_command", command=command)


def script() -> Script:
    """Later rules stand for what earlier ones leave over."""
    return Script(
        [
            after(SUMMARISE, _SUMMARY, where="last user"),
            after(GO_ON, *_AFTER_SUMMARY, where="first user"),
            after(READER, *_READER, where="system"),
            after(TASK, *_MAIN, where="first user"),
        ]
    )


_MAIN = (
    ScriptedReply(
        reasoning="The counts are easy; the longest note somebody else can read for me.",
        text="I look at what is there.",
        calls=(run("ls && wc -w *.txt"),),
    ),
    ScriptedReply(calls=(call("delegate", question=QUESTION),)),
    ScriptedReply(
        text="Both parts can be written at once.",
        calls=(
            run("wc -w note-*.txt | sort -rn | tail -n +2 > report.txt; cat report.txt"),
            call("write_file", path="about.txt", content=ANSWER + "\n"),
        ),
    ),
)
_READER = (
    ScriptedReply(text="I read it.", calls=(run("cat $(ls -S note-*.txt | head -n 1)"),)),
    ScriptedReply(text=ANSWER),
)
_SUMMARY = ScriptedReply(
    text="A report on the notes is asked for. The counts are in report.txt, the line on the "
    "longest is in about.txt. Left to do: join the two."
)
_AFTER_SUMMARY = (
    ScriptedReply(calls=(run("cat about.txt >> report.txt && rm about.txt && cat report.txt"),)),
    ScriptedReply(text=DONE),
)
