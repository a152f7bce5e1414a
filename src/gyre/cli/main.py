"""The `gyre` program: finds the command, runs it, and reports how it ended."""

import argparse
import errno
import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any

from gyre.cli.arguments import is_given, with_later_values
from gyre.types.errors import GyreError, visible

COMMANDS = {
    "train": "train a model on what agents do with it: a whole run, from one file",
    "resume": "go on with a run whose controller has ended, in whichever way",
    "stop": "stop a run, or end what it left when its controller ended by itself",
    "rollout": "execute groups of tasks without training, and keep their outcomes and trees",
    "evaluate": "measure a model, or a run's checkpoint, on a set of tasks",
    "task": "check tasks before any agent gets them: untouched, and by their solutions",
    "proxy": "record agent programs in front of engines",
    "serve": "serve a model over HTTP with the engine that is built in",
    "open": "open an execution at a running proxy and print its environment",
    "close": "close an execution: its key stops working, its log is final",
    "watch": "show runs in a browser, live and afterwards, and every tree",
    "status": "show how a run stands, on one screen",
    "top": "show a run as it goes, in this terminal",
    "inspect": "show the trees of a run",
    "report": "write a page, pictures and numbers of runs, to keep or to compare",
    "export": "write a run's training rows, its call records, or its trials for Harbor",
    "erase": "remove what an execution said and left behind from a run folder",
    "harness": "list the agent programs, or install some for runs without a network",
    "model": "list, show or fetch the models that need no hub",
    "simulate": "simulate a run: its hours, idle nodes and staleness, before it is paid for",
    "plan": "choose phi, mu and the size of cells for a target staleness",
    "config": "check, show or explain the file of a run, or write its schema",
}


ENDS_WITH_A_COMMAND = {"rollout", "evaluate"}
"""Commands after which `--` begins another program's arguments."""


ENDS = {
    0: "it is done",
    2: "something that can be mended, such as an argument or a file, was said in one line",
    130: "interrupted",
}
"""Exit statuses, unless a command's module says its own."""


FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""What a disk says that takes no more: never a fault of ours, and often without a file's name."""


def ends(command: str) -> dict[int, str]:
    """Every exit status of a command with what it means."""
    found: dict[int, str] = getattr(importlib.import_module(f"gyre.cli.{command}"), "ENDS", ENDS)
    return found


def parser() -> argparse.ArgumentParser:
    """The whole command line; each command's module adds its own arguments."""
    top = argparse.ArgumentParser(
        prog="gyre", description="Online reinforcement learning for agents that run for hours."
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show which Gyre this is")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"gyre.cli.{name}")
        statuses = "; ".join(f"{status}: {what}" for status, what in ends(name).items())
        one = commands.add_parser(
            name, help=summary, description=module.__doc__, epilog=f"exit status: {statuses}"
        )
        module.arguments(one)
    return top


class _Version(argparse.Action):
    """Looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **named: Any) -> None:
        from importlib.metadata import PackageNotFoundError, version

        from gyre.version import fingerprint

        try:
            number = version("gyre-rl")
        except PackageNotFoundError:
            number = "that is not installed"
        print(f"gyre {number}, sources {fingerprint()}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 for what the user can mend, said in one line."""
    given = list(sys.argv[1:] if argv is None else argv)
    after: list[str] = []
    if given[:1] and given[0] in ENDS_WITH_A_COMMAND and "--" in given:
        cut = given.index("--")
        given, after = given[:cut], given[cut + 1 :]
    top = parser()
    args, rest = top.parse_known_args(given)
    if unknown := with_later_values(args, rest):
        top.error(visible(f"unrecognized arguments: {' '.join(unknown)}"))
    args.argv = after
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be text, and an old locale may not have what is drawn with.
        sys.stdout.reconfigure(errors="replace")
    module = importlib.import_module(f"gyre.cli.{args.command}")
    try:
        return int(module.run(args) or 0)
    except GyreError as error:
        return _refused(args, str(error), *getattr(error, "__notes__", ()))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (a pager, head) has seen enough.
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in FULL and not is_given(args, error.filename):
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        return _refused(args, f"{where}{error.strerror}")


def _refused(args: argparse.Namespace, *lines: str) -> int:
    print(visible("\n".join([f"gyre {args.command}: {lines[0]}", *lines[1:]])), file=sys.stderr)
    return 2
