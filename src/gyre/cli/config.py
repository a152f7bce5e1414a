"""Check a run file, show it with its defaults, explain a setting, list presets, write a schema."""

import argparse
from pathlib import Path

from gyre.cli.arguments import takes_values
from gyre.types.errors import ConfigError


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=tuple(ACTIONS), help="what to do")
    add("config", nargs="?", metavar="CONFIG", help="a run file; else a table, key or preset")
    takes_values(parser)
    add("--origin", action="store_true", help="for `show`: where each value comes from")


def run(args: argparse.Namespace) -> None:
    if args.origin and args.action != "show":
        raise ConfigError(f"--origin: only `show` has it, not `{args.action}`")
    ACTIONS[args.action](args)


def _check(args: argparse.Namespace) -> None:
    from gyre.controller.run_dir import read_run

    found = read_run(_file(args), args.overrides).loaded
    schedule = "" if found.preset is None else f"; {found.schedule}"
    print(f"{args.config}: no mistakes{schedule}")


def _show(args: argparse.Namespace) -> None:
    from gyre.config.toml import as_toml
    from gyre.controller.run_dir import read_run

    found = read_run(_file(args), args.overrides)
    if found.loaded.preset is not None:
        print(f"# {found.loaded.schedule}\n")
    print(*as_toml(found.config, found.loaded.origin if args.origin else None), sep="\n")


def _schema(args: argparse.Namespace) -> None:
    import json

    from gyre.config.schema import json_schema

    if args.config is not None:
        raise ConfigError(f"{args.config}: `schema` is of every run file, and takes none")
    print(json.dumps(json_schema(), indent=2, allow_nan=False))


def _explain(args: argparse.Namespace) -> None:
    from gyre.config.explain import explained

    if args.overrides:
        raise ConfigError(f"{args.overrides[0]}: `explain` takes one table or key")
    print(*explained(args.config), sep="\n")


def _presets(args: argparse.Namespace) -> None:
    from gyre.config.presets import listed, written_out

    if args.overrides:
        raise ConfigError(f"{args.overrides[0]}: `presets` takes one preset, or none")
    print(*(listed() if args.config is None else written_out(args.config)), sep="\n")


def _file(args: argparse.Namespace) -> Path:
    if args.config is None:
        raise ConfigError(
            f"expected a run file, as in `gyre config {args.action} examples/run.toml`"
        )
    return Path(args.config)


ACTIONS = {
    "check": _check,
    "show": _show,
    "schema": _schema,
    "explain": _explain,
    "presets": _presets,
}
