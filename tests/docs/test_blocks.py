"""Code on the pages: it says its language, it parses, and the commands it shows exist."""

import json
import re
import shlex
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from tests.docs.support.pages import ROOT, blocks, name, pages, spans

from gyre.cli.main import ENDS_WITH_A_COMMAND, parser
from gyre.config.loader import loaded
from gyre.config.settings import setting_at, tables
from gyre.controller.run_dir import checked
from gyre.tasks.folder import task
from gyre.types.errors import ConfigError, TaskError
from gyre.types.tasks import EvaluationRule

LANGUAGES = {"sh", "text", "toml", "python", "json", "jsonl", "markdown"}
ENDINGS = {"toml", "txt", "safetensors", "json", "url"}
"""Of names of files."""
PAGES = [page for page in pages() if blocks(page)]
INSIDE = re.compile(r"\$\((.*?)\)")
COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
EXTRAS = set(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
)


def of(page, *languages):
    return [block for block in blocks(page) if block.language in languages]


def commands(text):
    """The commands of a shell's lines, as lists of words, those inside of others included."""
    for inner in INSIDE.findall(text):
        yield from commands(inner)
    told = COMMENT.sub("", INSIDE.sub("", text)).replace("\\\n", " ")
    lexer = shlex.shlex(told, punctuation_chars=";&|<>\n")
    lexer.commenters = ""
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    words = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|\n"):
            while words and re.match(r"[A-Za-z_]+=", words[0]):
                del words[0]
            if words:
                yield words
            words = []
        else:
            words.append(word)


def plain(words):
    """The words as a program gets them: quotes taken off, what is redirected left out."""
    cut = next((i for i, word in enumerate(words) if word[0] in "<>"), len(words))
    return [shlex.split(word)[0] if word[0] in "'\"" else word for word in words[:cut]]


def fault(words):
    """What is wrong with a command; None: nothing, or nobody here knows it."""
    program, *rest = plain(words)
    if program == "gyre":
        return misunderstood(rest)
    if program == "make" and (unknown := [one for one in rest if one not in TARGETS]):
        return f"make {unknown[0]}: no such target"
    if program in ("python", "python3", ".venv/bin/python") and rest[0].startswith(("scripts/",)):
        program = rest[0]
    if "/" in program and program.split("/")[0] in ("scripts", "benchmarks"):
        return None if (ROOT / program).is_file() else f"{program}: no such file"
    for wanted in re.findall(r"gyre-rl\[([\w,]+)\]", " ".join(rest)):
        if unknown := set(wanted.split(",")) - EXTRAS:
            return f"no extra {unknown.pop()}"
    return None


def misunderstood(arguments):
    if arguments[0] in ENDS_WITH_A_COMMAND and "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    try:
        parser().parse_args(arguments)
    except SystemExit as end:
        return None if end.code == 0 else f"gyre {shlex.join(arguments)}: not understood"
    return None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_its_language(page):
    assert [] == [one.where for one in blocks(page) if one.language not in LANGUAGES]


@pytest.mark.parametrize("page", [page for page in PAGES if of(page, "sh")], ids=name)
def test_shell_parses_and_its_commands_exist(page, capsys):
    shown = of(page, "sh")
    script = "\n".join(block.text for block in shown)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    faults = [
        f"{block.where}: {said}"
        for block in shown
        for words in commands(block.text)
        if (said := fault(words)) is not None
    ]

    assert "" == done.stderr
    assert [] == faults, capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_data_and_programs_parse(page):
    for block in of(page, "json"):
        json.loads(block.text)
    for block in of(page, "jsonl"):
        assert [json.loads(line) for line in block.text.splitlines()]
    for block in of(page, "toml"):
        tomllib.loads(block.text)
    for block in of(page, "python"):
        compile(block.text, block.where, "exec")


def test_commands_within_sentences_have_the_options_that_they_show():
    (known,) = [one for one in parser()._actions if isinstance(one.choices, dict)]
    options = {
        command: {name for one in found._actions for name in one.option_strings}
        for command, found in known.choices.items()
    }
    wrong = []
    for page in pages():
        for span in spans(page):
            program, *words = span.split()
            if program != "gyre" or not words or not re.fullmatch("[a-z]+", words[0]):
                continue
            shown = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--"}
            if words[0] not in options or not shown <= options[words[0]]:
                wrong.append(f"{name(page)}: {span}")

    assert [] == wrong


def test_settings_within_sentences_exist():
    """A dotted name whose first part is a table of run files, unless it is a file's or a task's."""
    of_tasks = {one.name for one in fields(EvaluationRule)}
    found = set()
    for page in pages():
        for span in spans(page):
            keys = span.partition("=")[0].split(".")
            is_dotted = all(re.fullmatch("[a-z_]+", key) for key in keys) and len(keys) > 1
            of_a_task = keys[0] == "evaluation" and bool(of_tasks & set(keys[1:]))
            if is_dotted and keys[0] in tables() and keys[-1] not in ENDINGS and not of_a_task:
                found.add((name(page), *keys))

    assert len(found) > 40
    assert [] == sorted(one for one in found if setting_at(one[1:]) is None)


def test_targets_within_sentences_exist():
    shown = {
        (name(page), span)
        for page in pages()
        for span in spans(page)
        if re.fullmatch("make [a-z-]+", span)
    }

    assert set() == {one for one in shown if one[1].split()[1] not in TARGETS}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gyre trian run.toml", "gyre trian run.toml: not understood"),
        ('eval "$(gyre opne runs/first)"', "gyre opne runs/first: not understood"),
        ("A=1 gyre status --jsn runs/first > out", "gyre status --jsn runs/first: not understood"),
        ("cd somewhere && make tets", "make tets: no such target"),
        ("python scripts/none", "scripts/none: no such file"),
        ("pip install 'gyre-rl[gpu]'", "no extra gpu"),
    ],
)
def test_a_command_that_is_not_there_is_noticed(line, said, capsys):
    assert [said] == [found for words in commands(line) if (found := fault(words)) is not None]


def test_pages_are_read_to_their_end():
    """A fence that is not closed would hide everything behind it."""
    for page in pages():
        fences = re.findall(r"^ *```", Path(page).read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(page)), name(page)


# What a run, or a task, is told

RUN = tomllib.loads((ROOT / "examples" / "run.toml").read_text())
ALTERNATIVES = ("tasks", "harness", "evaluate")
"""Tables of several kinds, which replace that of the example whole."""
OTHERS = {"model_provider": "Codex"}
"""Keys by which settings of other programs are known."""


def told_to_a_run(found):
    merged = {
        key: {**RUN.get(key, {}), **table}
        if isinstance(table, dict) and key not in ALTERNATIVES
        else table
        for key, table in found.items()
    }
    checked(loaded("page", {**RUN, **merged}))


def told_to_a_task(found, folder):
    task({"instruction": "Do it.", **found}, where="page", folder=folder, name="one")


SETTINGS = [
    (block, tomllib.loads(block.text))
    for page in PAGES
    for block in of(page, "toml")
    if not block.is_file
]


@pytest.mark.parametrize(
    ("block", "found"),
    [one for one in SETTINGS if not OTHERS.keys() & one[1].keys()],
    ids=lambda one: getattr(one, "where", ""),
)
def test_settings_are_understood_by_whom_they_are_for(block, found, tmp_path):
    """A part of a run file stands in examples/run.toml; what is none is a task's."""
    try:
        told_to_a_run(found)
    except ConfigError as refused:
        try:
            told_to_a_task(found, tmp_path)
        except TaskError as error:
            pytest.fail(f"{block.where}: no run file ({refused}), and no task ({error})")


def test_a_setting_that_does_not_exist_is_noticed(tmp_path):
    with pytest.raises(ConfigError, match=r"cells\.cuont"):
        told_to_a_run({"cells": {"cuont": 3}})
    with pytest.raises(TaskError, match="evaluatoin"):
        told_to_a_task({"evaluatoin": {"argv": ["true"]}}, tmp_path)
