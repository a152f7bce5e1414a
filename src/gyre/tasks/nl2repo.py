"""NL2RepoBench's folders: a specification, commands that test what was built, and how many tests.

The score is the part of that fixed number which passes by a JUnit report, not by what is printed.
"""

import json
import shlex
from pathlib import Path, PurePosixPath
from typing import Any

from gyre.tasks import safe_paths
from gyre.tasks.task_list import ListedTasks, read_text
from gyre.types.errors import TaskError, wrap_errors
from gyre.types.tasks import CountedTests, EvaluationRule, ResourceNeeds, Task

SPECIFICATION = "start.md"
IMAGES = "ghcr.io/multimodal-art-projection/nl2repobench"
WORKDIR = "/workspace"
ATTEMPT_S = 1800.0
INSTRUCTION = """Build the whole project that the specification below describes, in the working \
directory. Tests that you cannot see will judge it.

"""
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
        tasks = (
            _read(path, tests) for path in safe_paths.folders_with(folder, SPECIFICATION, depth=1)
        )
        super().__init__(tasks, str(folder), expected=f"folders with a {SPECIFICATION}")


def _read(folder: Path, tests: Path) -> Task:
    safe_paths.check(folder, str(folder))
    own = tests / folder.name
    if not own.is_dir():
        raise TaskError(f"{own}: expected a folder with the tests of {folder.name}")
    safe_paths.check(own, str(own))
    protected = _words(folder / "test_files.json")
    for path in protected:
        safe_paths.child(folder, path, str(folder / "test_files.json"))
    commands = _words(folder / "test_commands.json")
    if not any(_is_pytest(command) for command in commands):
        raise TaskError(f"{folder / 'test_commands.json'}: expected a command that runs pytest")
    return Task(
        id=folder.name,
        instruction=INSTRUCTION + read_text(folder / SPECIFICATION),
        files=None,
        evaluation=EvaluationRule(
            argv=("bash", "-c", _script(commands, protected)),
            score="junit.xml",
            tests=CountedTests(count=_count(folder / "test_case_count.txt")),
            files=str(own.resolve()),
            attempt_s=ATTEMPT_S,
        ),
        needs=ResourceNeeds(
            image=f"{IMAGES}/{folder.name.lower()}:1.0", workdir=WORKDIR, portable=True
        ),
    )


def _script(commands: list[str], protected: list[str]) -> str:
    """The agent's own tests and hooks go, the hidden ones come, and every pytest reports."""
    lines = ["find . -name conftest.py -not -path './.git/*' -delete"]
    lines += [f"rm -rf -- {shlex.quote(str(PurePosixPath(path)))}" for path in protected]
    lines.append('cp -R "$GYRE_EVALUATION"/. .')
    lines.append('export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"')
    for number, command in enumerate(commands):
        if _is_pytest(command):
            command += f' -p no:cacheprovider --junitxml="$GYRE_RESULTS/junit-{number:03}.xml"'
        lines.append(f"( {command} ) || true")
    return "\n".join([*lines, MERGE])


def _is_pytest(command: str) -> bool:
    words = command.split()
    return words[:1] == ["pytest"] or words[1:3] == ["-m", "pytest"]


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
