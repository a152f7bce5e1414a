"""The command line: every command with its arguments, options, defaults and exit statuses."""

import argparse
import re
from collections.abc import Iterable, Iterator

from gyre.cli.main import COMMANDS, ENDS_WITH_A_COMMAND, ends, parser

OWN = {1, 3}
"""Exit statuses that mean something else for every command."""
FEW = 4
"""So many rows that another command has too are written again."""
DEFAULT = re.compile(r" \(default: (.*?)\)(?=$|;)")


def lines() -> Iterator[str]:
    (commands,) = [one for one in parser()._actions if isinstance(one.choices, dict)]
    yield from ("", " · ".join(f"[`{name}`](#gyre-{name})" for name in COMMANDS))
    said: dict[str, str] = {}
    for name, one in commands.choices.items():
        yield from _command(name, one, said)


def _command(name: str, one: argparse.ArgumentParser, said: dict[str, str]) -> Iterator[str]:
    """What another command has said already is only named."""
    actions = [action for action in one._actions if action.dest != "help"]
    yield from ("", f"## gyre {name}", "", " ".join(one.description.split()), "")
    yield from ("```text", _usage(name, actions), "```")
    rows = {_name(action): _row(one, action) for action in actions}
    new = {argument: row for argument, row in rows.items() if said.get(row, name) == name}
    for row in rows.values():
        said.setdefault(row, name)
    if len(rows) - len(new) < FEW:
        new = rows
    if new:
        yield from ("", "| argument | default | what it is |", "|---|---|---|", *new.values())
    if shared := [f"`{argument.split()[0]}`" for argument in rows if argument not in new]:
        (other,) = {said[rows[argument]] for argument in rows if argument not in new}
        yield from ("", f"As in [`gyre {other}`](#gyre-{other}): {', '.join(shared)}.")
    if OWN & set(ends(name)):
        told = (f"{status}: {what}" for status, what in ends(name).items() if status in {0, *OWN})
        yield from ("", f"Exit status {'; '.join(told)}.")


def _usage(name: str, actions: Iterable[argparse.Action]) -> str:
    """Arguments first, because that is how they are written by hand."""
    must = [_spelled(one) for one in actions if not one.option_strings or one.required]
    more = any(one.option_strings and not one.required for one in actions)
    ending = ["[-- COMMAND ...]"] if name in ENDS_WITH_A_COMMAND else []
    return " ".join(["gyre", name, *must, *(["[OPTIONS]"] if more else []), *ending])


def _spelled(action: argparse.Action) -> str:
    if action.option_strings:
        return _name(action)
    name = value(action)
    return {
        None: name,
        "?": f"[{name}]",
        "*": f"[{name} ...]",
        "+": f"{name} [{name} ...]",
    }[action.nargs]


def _name(action: argparse.Action) -> str:
    """An argument as it is typed, or an option with its value."""
    if not action.option_strings:
        return value(action)
    return action.option_strings[0] + ("" if action.nargs == 0 else f" {value(action)}")


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
    default = ""
    if found is not None:
        default, says = found[1], DEFAULT.sub("", says)
    return f"| `{cell(_name(action))}` | {cell(default)} | {cell(says)} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
