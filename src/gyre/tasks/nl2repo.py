"""NL2RepoBench's folders: a specification, commands that test what was built, and how many tests.

The score is the part of that fixed number which passes by a JUnit report, not by what is printed.
"""

import json
import re
import shlex
from pathlib import Path, PurePosixPath
from typing import Any

from gyre.tasks import safe_paths
from gyre.tasks.task_list import ListedTasks, read_each, read_text
from gyre.types.errors import TaskError, wrap_errors
from gyre.types.tasks import CountedTests, EvaluationRule, ResourceNeeds, Task

SPECIFICATION = "start.md"
COMMANDS = "test_commands.json"
IMAGES = "ghcr.io/multimodal-art-projection/nl2repobench"
WORKDIR = "/workspace"
ATTEMPT_S = 1800.0
INSTRUCTION = """Build the whole project that the specification below describes, in the working \
directory. Tests that you cannot see will judge it.

"""
PYTEST = ("pytest", "py.test")
PYTHON = re.compile(r"python[0-9.]*")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
STARTERS = {
    "env": (("-u", "-C"), 0),
    "xvfb-run": (("-e", "-f", "-n", "-p", "-s", "-w"), 0),
    "timeout": (("-k", "-s"), 1),
    "nice": (("-n",), 0),
    "exec": (("-a",), 0),
    "time": ((), 0),
}
"""Programs that start another: their options with a value, and their operands before it."""
MERGE = """python3 -I - "$GYRE_RESULTS" <<'MERGED'
import sys
from pathlib import Path
from xml.etree import ElementTree
results = Path(sys.argv[1])
whole = ElementTree.Element("testsuites")
for path in sorted(results.glob("junit-*.xml")):
    found = ElementTree.parse(path).getroot()
    whole.extend(found if found.tag == "testsuites" else [found])
if len(whole):
    ElementTree.ElementTree(whole).write(results / "junit.xml")
MERGED
"""


class Nl2RepoTasks(ListedTasks):
    """The tasks of a checkout's `test_files`, by name; read at once.

    `tests` holds a folder for each of them with its own test files, as its image has them.
    """

    def __init__(self, folder: Path, *, tests: Path) -> None:
        if (folder / "test_files").is_dir():
            folder = folder / "test_files"
        folders = safe_paths.folders_with(folder, COMMANDS, depth=1)
        found = read_each(lambda path: _read(path, tests), folders)
        super().__init__(found, str(folder), expected=f"folders with a {COMMANDS}")


def _read(folder: Path, tests: Path) -> Task:
    safe_paths.check(folder, str(folder))
    own = tests / folder.name
    if not own.is_dir():
        raise TaskError(f"{own}: expected a folder with the tests of {folder.name}")
    safe_paths.check(own, str(own))
    protected = _words(folder / "test_files.json")
    for path in protected:
        safe_paths.child(folder, path, str(folder / "test_files.json"))
    listed = folder / COMMANDS
    commands = _words(listed)
    are_pytest = [_is_pytest(command, listed) for command in commands]
    if not any(are_pytest):
        raise TaskError(f"{listed}: expected a command that runs pytest")
    return Task(
        id=folder.name,
        instruction=INSTRUCTION + read_text(folder / SPECIFICATION),
        files=None,
        evaluation=EvaluationRule(
            argv=("bash", "-c", _script(commands, are_pytest, protected)),
            score="junit.xml",
            tests=CountedTests(count=_count(folder / "test_case_count.txt")),
            files=str(own.resolve()),
            attempt_s=ATTEMPT_S,
        ),
        needs=ResourceNeeds(
            judge_image=f"{IMAGES}/{folder.name.lower()}:1.0", workdir=WORKDIR, portable=True
        ),
    )


def _script(commands: list[str], are_pytest: list[bool], protected: list[str]) -> str:
    """The agent's own tests and hooks go, the hidden ones come, and every pytest reports."""
    lines = ["find . -name conftest.py -not -path './.git/*' -delete"]
    lines += [f"rm -rf -- {shlex.quote(str(PurePosixPath(path)))}" for path in protected]
    lines.append('cp -R "$GYRE_EVALUATION"/. .')
    lines.append('export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"')
    for number, (command, is_pytest) in enumerate(zip(commands, are_pytest, strict=True)):
        if is_pytest:
            command += f' -p no:cacheprovider --junitxml="$GYRE_RESULTS/junit-{number:03}.xml"'
        lines.append(f"( {command} ) || true")
    return "\n".join([*lines, MERGE])


def _is_pytest(command: str, where: Path) -> bool:
    """Whether options behind it are pytest's; TaskError where pytest runs and they are not."""
    found = [_starts_pytest(words) for words in _simple_commands(command, where)]
    if any(found[:-1]) or None in found:
        message = f"{where}: {command!r}: expected pytest to be the last program that it starts"
        raise TaskError(message)
    return bool(found[-1:] == [True])


def _simple_commands(command: str, where: Path) -> list[list[str]]:
    """The words of each program that a line of a shell starts."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    with wrap_errors(TaskError, f"{where}: {command!r}", ValueError):
        for word in lexer:
            if set(word) <= set("();|&"):
                found.append([])
            else:
                found[-1].append(word)
    return [words for words in found if words]


def _starts_pytest(words: list[str]) -> bool | None:
    """Looks behind programs that start another; None: it is named in another way."""
    left = list(words)
    while left:
        word, *left = left
        name = PurePosixPath(word).name
        if ASSIGNMENT.match(word):
            continue
        if name in PYTEST:
            return True
        if PYTHON.fullmatch(name):
            left = _behind_options(left, ("-W", "-X"))
            if left[:1] == ["-m"]:
                left = left[1:]
                continue
        elif name in STARTERS:
            with_value, num_operands = STARTERS[name]
            left = _behind_options(left, with_value)[num_operands:]
            continue
        break
    is_named = any(PurePosixPath(word).name in PYTEST for word in words)
    return None if is_named and "install" not in words else False


def _behind_options(words: list[str], with_value: tuple[str, ...]) -> list[str]:
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[2 if words[0] in with_value else 1 :]
    return words


def _count(path: Path) -> int:
    text = read_text(path).strip()
    if not text.isdecimal() or int(text) < 1:
        raise TaskError(f"{path}: expected the number of tests, found {text[:40]!r}")
    return int(text)


def _words(path: Path) -> list[str]:
    with wrap_errors(TaskError, path, (ValueError, RecursionError)):
        found: Any = json.loads(read_text(path))
    if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
        raise TaskError(f"{path}: expected a list of texts")
    return found
