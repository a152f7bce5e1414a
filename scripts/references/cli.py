"""The command line: every command with its arguments, options, defaults and exit statuses."""

import argparse
import re
from collections.abc import Iterator

from gyre.cli.main import COMMANDS, ENDS_WITH_A_COMMAND, ends, parser

DEFAULT = re.compile(r" \(default: (.*?)\)(?=$|;)")


def lines() -> Iterator[str]:
    (commands,) = [one for one in parser()._actions if isinstance(one.choices, dict)]
    yield from ("", "| command | what it does |", "|---|---|")
    for name, summary in COMMANDS.items():
        yield f"| [`gyre {name}`](#gyre-{name}) | {cell(summary)} |"
    for name, one in commands.choices.items():
        yield from _command(name, one)


def _command(name: str, one: argparse.ArgumentParser) -> Iterator[str]:
    yield from ("", f"## gyre {name}", "", " ".join(one.description.split()), "")
    yield from ("```text", *_usage(name, one), "```")
    told = [action for action in one._actions if action.dest != "help"]
    if told:
        yield from ("", "| argument | default | what it is |", "|---|---|---|")
        yield from (_row(one, action) for action in told)
    yield from ("", "| exit status | when |", "|---|---|")
    yield from (f"| {status} | {cell(what)} |" for status, what in ends(name).items())


def _usage(name: str, one: argparse.ArgumentParser) -> Iterator[str]:
    """In lines of 80 columns; arguments first, because that is how they are written by hand."""
    actions = [action for action in one._actions if action.dest != "help"]
    parts = [_spelled(action) for action in sorted(actions, key=lambda a: bool(a.option_strings))]
    if name in ENDS_WITH_A_COMMAND:
        parts.append("[-- COMMAND ...]")
    line = f"gyre {name}"
    for part in parts:
        if len(line) + len(part) > 78:
            yield line
            line = " " * len(f"gyre {name}")
        line += f" {part}"
    yield line


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        name = value(action)
        return {
            None: name,
            "?": f"[{name}]",
            "*": f"[{name} ...]",
            "+": f"{name} [{name} ...]",
        }[action.nargs]
    text = action.option_strings[0]
    if action.nargs != 0:
        text += f" {value(action)}"
    return text if action.required else f"[{text}]"


def value(action: argparse.Action) -> str:
    """What stands for its value."""
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    if action.metavar is not None:
        return str(action.metavar)
    return action.dest.upper() if action.option_strings else action.dest


def _row(one: argparse.ArgumentParser, action: argparse.Action) -> str:
    says = one._get_formatter()._expand_help(action)
    found = DEFAULT.search(says)
    must = action.required and action.nargs not in ("*", "?")
    default = "required" if must else ""
    if found is not None:
        default, says = found[1], DEFAULT.sub("", says)
    name = value(action)
    if action.option_strings:
        name = action.option_strings[0] + ("" if action.nargs == 0 else f" {name}")
    return f"| `{cell(name)}` | {cell(default)} | {cell(says)} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
