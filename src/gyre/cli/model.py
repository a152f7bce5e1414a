"""List the models that need no hub, show what one is, or fetch one that is not there."""

import argparse
from pathlib import Path

from gyre.types.errors import ConfigError

FETCHED = "smollm2"


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("list", "show", "fetch"), help="what to do")
    add("name", nargs="?", metavar="NAME", help="tiny, smollm2, or a folder with a model")
    add("--to", type=Path, metavar="DIR", help="fetch into this folder instead of the cache")


def run(args: argparse.Namespace) -> None:
    if args.to is not None and args.action != "fetch":
        raise ConfigError(f"--to {args.to}: only `fetch` writes a folder")
    if args.action == "list":
        if args.name is not None:
            raise ConfigError(
                f"{args.name}: `list` takes no name; `gyre model show {args.name}` shows one"
            )
        _list()
        return
    if args.name is None:
        raise ConfigError(f"expected a name, as in `gyre model {args.action} {FETCHED}`")
    if args.action == "show":
        _show(args.name)
    else:
        _fetch(args.name, args.to)


def _list() -> None:
    from gyre.model.registry import known_models

    for name, known in known_models().items():
        print(f"{name:<9} {'there  ' if known.is_there else 'missing'}  {known.folder}")
        print(f"{'':<9} {known.summary}" + ("" if known.is_there else f"; {known.remedy}"))


def _show(name: str) -> None:
    from gyre.model.loader import load_network

    # Loading it is the proof that it can be loaded.
    network = load_network(name)
    shape = network.shape
    print(f"{name}  {network.module.name_or_path}")
    rows = {
        "architecture": network.module.config.model_type,
        "parameters": f"{shape.parameters:,}",
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": f"{shape.heads} of {shape.head_dim}, {shape.kv_heads} for keys and values",
        "vocabulary": f"{shape.vocabulary:,}",
        "context": f"{shape.context:,} tokens",
    }
    for title, value in rows.items():
        print(f"  {title:<13} {value}")


def _fetch(name: str, to: Path | None) -> None:
    from gyre.model.registry import known_models

    if name != FETCHED:
        raise ConfigError(f"{name}: cannot be fetched; {FETCHED} can")
    folder = to or known_models()[name].folder

    from gyre.model.smollm2 import fetch_smollm2

    fetched = fetch_smollm2(folder)
    print(f"{name}: {'fetched into' if fetched else 'already in'} {folder}")
