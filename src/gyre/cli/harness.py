"""List the agent programs that runs can name, or install some for runs without a network."""

import argparse

from gyre.types.errors import ConfigError


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("list", "prepare"), help="what to do")
    add("names", nargs="*", metavar="NAME[@VERSION]", help="programs, as `list` shows them")


def run(args: argparse.Namespace) -> None:
    if args.action == "list":
        if args.names:
            raise ConfigError(f"{args.names[0]}: `list` takes no name, and shows all")
        _list()
        return
    if not args.names:
        raise ConfigError("expected a name, as in `gyre harness prepare claude_code`")
    _prepare(args.names)


def _list() -> None:
    from gyre.harnesses.registry import PROGRAMS, cache, find, folder_for, locked_versions

    for program in PROGRAMS.values():
        for version in locked_versions(program):
            found = find(program, version, cache())
            state = "missing" if found is None else "there"
            usual = "pinned" if version == program.version else ""
            folder = folder_for(program, version, cache())
            print(f"{program.name:<15} {version:<9} {usual:<6}  {state:<7}  {folder}")


def _prepare(names: list[str]) -> None:
    from gyre.harnesses.install import prepare
    from gyre.harnesses.registry import cache, find, lock_of, picked

    for program, version in [picked(name) for name in names]:
        if find(program, version, cache()) is None:
            print(f"{program.name} {version}: installing", flush=True)
            if lock_of(program, version) is None:
                print("  no hash of this version is known; what the registry sends is taken")
        print(f"{program.name} {version}: in {prepare(program, version, cache()).folder}")
