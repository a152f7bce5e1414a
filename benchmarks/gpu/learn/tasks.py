"""Rounds of letters as tasks: each letter is chatter that ends with one small job in a folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gyre.types.tasks import EvaluationRule, Task

HERE = Path(__file__).parent
FILES = tuple(sorted(path.stem for path in (HERE / "workspace").iterdir()))
"""Stems of the files that a workspace begins with; each holds its own as its only line."""
WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "fern", "grape", "hazel", "iris", "jade"),
    *("kelp", "lemon", "maple", "nectar", "olive", "pearl", "quartz", "rose", "sage", "tulip"),
)
KINDS = ("write", "append", "copy", "rename", "delete", "folder")
WHO = ("My sister", "Our neighbour", "The baker", "My uncle", "The teacher", "An old friend")
DID = ("met", "visited", "wrote to", "sang for", "waited for", "cooked for", "painted")
WHOM = ("the mayor", "a cousin", "two sailors", "the doctor", "our guests", "a stranger")
WHERE = ("at the market", "by the river", "in the garden", "near the bridge", "on the train")
WHEN = ("on Sunday", "last week", "in the rain", "before dinner", "at noon", "all morning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One small thing to do in the folder."""

    asked: str
    command: str
    """What does it."""
    states: str
    """What then stands where, as the judge reads it."""


def rounds(seed: str, count: str, letters: str, sentences: str) -> list[Task]:
    """Tasks of one seed; a letter has so many sentences before its job."""
    random = Random(f"{seed}/letters")
    return [
        _task(f"letters-{seed}-{number}", random, int(letters), int(sentences))
        for number in range(int(count))
    ]


def _task(name: str, random: Random, letters: int, sentences: int) -> Task:
    jobs = list(jobs_of(random, letters))
    return Task(
        id=name,
        instruction="\n".join(letter(random, job.asked, sentences) for job in jobs),
        files=str(HERE / "workspace"),
        evaluation=EvaluationRule(
            argv=("sh", "-c", '. "$GYRE_EVALUATION/judge.sh"', "judge", *(j.states for j in jobs)),
            score="reward.txt",
            files=str(HERE / "judge"),
            attempt_s=30,
            attempts=2,
        ),
    )


def jobs_of(random: Random, count: int) -> Iterator[Job]:
    """Jobs of which no two are about the same file."""
    free = random.sample(FILES, len(FILES))
    for _ in range(count):
        one, other, word = free.pop(), free.pop(), random.choice(WORDS)
        yield job(random.choice(KINDS), one, other, word)


def job(kind: str, one: str, other: str, word: str) -> Job:
    asked, command, states = {
        "write": (
            f"write the word {word} to {one}.txt",
            f"echo {word} > {one}.txt",
            f"{one}.txt={word},",
        ),
        "append": (
            f"add the word {word} to the end of {one}.txt",
            f"echo {word} >> {one}.txt",
            f"{one}.txt={one},{word},",
        ),
        "copy": (
            f"copy {one}.txt to {other}.txt",
            f"cp {one}.txt {other}.txt",
            f"{one}.txt={one}, {other}.txt={one},",
        ),
        "rename": (
            f"rename {one}.txt to {other}.txt",
            f"mv {one}.txt {other}.txt",
            f"{one}.txt= {other}.txt={one},",
        ),
        "delete": (f"delete {one}.txt", f"rm {one}.txt", f"{one}.txt="),
        "folder": (f"make a folder called {word}-{one}", f"mkdir {word}-{one}", f"{word}-{one}=/"),
    }[kind]
    return Job(asked=asked, command=command, states=states)


def letter(random: Random, asked: str, sentences: int) -> str:
    """One line: chatter, and then what is asked."""
    return " ".join([*(_sentence(random) for _ in range(sentences)), f"P.S. Please {asked}."])


def _sentence(random: Random) -> str:
    return " ".join(random.choice(part) for part in (WHO, DID, WHOM, WHERE, WHEN)) + "."
