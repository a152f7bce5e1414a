"""Open an execution at a running proxy; prints lines for the shell that point agents at it."""

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the proxy's run folder")
    add("name", nargs="?", metavar="NAME", help="name of the execution (default: a new one)")
    add("--json", action="store_true", help="print id, key and address as JSON")


def run(args: argparse.Namespace) -> None:
    import json

    from gyre.harnesses.command import environment
    from gyre.proxy.admin_client import control

    body = {"id": args.name} if args.name else {}
    found = control(args.run, "POST", "executions", body, execution=args.name)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in environment(found["url"], found["key"]).items():
        print(f"export {name}={value}")
