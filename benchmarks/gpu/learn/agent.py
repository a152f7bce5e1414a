"""A clerk of letters: reads one after the other, and has a helper do what each of them asks for.

    python3 -I -S agent.py COMPACT_AT CHATTER "LETTER[newline]LETTER..."

The clerk is the main agent: for each letter it says in a line what is asked. A helper is a
sub-agent with a context of its own: it is told that line and replies with a shell command, which is
carried out in the working directory; one that fails is shown to it once more. When the clerk's
context has more than COMPACT_AT tokens and there is another letter, it sums up and goes on in a new
one. Contexts begin with examples; the clerk's are letters that say their chatter CHATTER times.
"""

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

CLERK = "You read letters. Each asks for one job. Reply with the job in one line and nothing else."
HELPER = "You do one job in a folder. Reply with one shell command and nothing else."
SUM_UP = "Sum up in one line which jobs are done."
CHATTER = (
    *("The days are short.", "It rains a lot.", "My aunt is well."),
    *("We saw a hare.", "The road is closed.", "I read a book."),
)
"""What the letters of examples say before they ask."""
DONE = {
    "copy spoon.txt to fork.txt": "cp spoon.txt fork.txt",
    "write the word cobalt to plate.txt": "echo cobalt > plate.txt",
    "delete cup.txt": "rm cup.txt",
    "add the word ivory to the end of bowl.txt": "echo ivory >> bowl.txt",
    "make a folder called red-knife": "mkdir red-knife",
    "rename jar.txt to pot.txt": "mv jar.txt pot.txt",
}
"""Jobs as a helper does them."""
NAME = r"[A-Za-z][\w-]*(\.\w+)?"
ALLOWED = re.compile(rf"echo [\w-]+ >>? {NAME}|(cp|mv) {NAME} {NAME}|(rm|mkdir|touch) {NAME}")
"""Commands that are carried out: none of them reaches beyond the folder, whatever a model says."""
IS_DONE, NOT_DONE = "Done.", "Not done."
REFUSED = "not a command of this shell"
MOST_TRIES = 2
MOST_TOKENS = {"main": 24, "sub-agent": 24, "main-summary": 48}
"""Of a reply, by the role of the call."""
PATIENCE_S = 600


def main(compact_at: int, chatter: int, letters: list[str]) -> None:
    """Every letter is read, and whatever the clerk makes of it is tried."""
    read = dict(examples(chatter))
    context, told = shown(CLERK, read), f"{IS_DONE}\n"
    for number, letter in enumerate(letters):
        context.append({"role": "user", "content": f"{told}{letter}"})
        job, tokens = ask(context, "main")
        context.append({"role": "assistant", "content": job})
        told = f"{helped(job, number)}\n"
        if tokens > compact_at and number + 1 < len(letters):
            context.append({"role": "user", "content": f"{told}{SUM_UP}"})
            summary, _ = ask(context, "main-summary")
            context, told = shown(CLERK, read), f"{summary}\n"


def examples(chatter: int) -> Iterator[tuple[str, str]]:
    """Letters as a clerk hears them, each behind what became of the one before, and their jobs."""
    told = ""
    for number, job in enumerate(DONE):
        said = (*CHATTER[number:], *CHATTER[:number]) * chatter
        yield f"{told}{' '.join(said)} P.S. Please {job}.", job
        told = f"{IS_DONE}\n"


def helped(job: str, number: int) -> str:
    """What became of a job in the hands of a helper, as the clerk is told."""
    context = [*shown(HELPER, DONE), {"role": "user", "content": job}]
    for _ in range(MOST_TRIES):
        command, _ = ask(context, "sub-agent", f"helper-{number}")
        wrong = carried_out(command.strip())
        if wrong is None:
            return IS_DONE
        context.append({"role": "assistant", "content": command})
        context.append({"role": "user", "content": f"{wrong}. Try again: {job}"})
    return NOT_DONE


def carried_out(command: str) -> str | None:
    """None when the command has done what it does, or what is wrong with it."""
    if ALLOWED.fullmatch(command) is None:
        return REFUSED
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else None


def shown(system: str, pairs: dict[str, str]) -> list[dict[str, str]]:
    """A new context: what is to be done, and how it is done."""
    context = [{"role": "system", "content": system}]
    for asked, said in pairs.items():
        context.append({"role": "user", "content": asked})
        context.append({"role": "assistant", "content": said})
    return context


def ask(context: list[dict[str, str]], role: str, agent: str | None = None) -> tuple[str, int]:
    """The model's reply, and how many tokens the context now has."""
    asked = {"model": "policy", "messages": context, "max_tokens": MOST_TOKENS[role]}
    scheme, _, rest = os.environ["OPENAI_BASE_URL"].partition("://")
    if scheme != "http":
        raise SystemExit(f"OPENAI_BASE_URL: expected an http:// address, found {scheme}://")
    host, _, path = rest.partition("/")
    headers = {
        "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "content-type": "application/json",
        "x-gyre-role": role,
    }
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    connection.request(
        "POST",
        f"/{path}/chat/completions",
        json.dumps(asked),
        headers if agent is None else {**headers, "x-gyre-agent": agent},
    )
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != http.client.OK:
        raise SystemExit(f"{answer.status} from the model: {text}")
    found = json.loads(text)
    return found["choices"][0]["message"]["content"] or "", found["usage"]["total_tokens"]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].splitlines())
