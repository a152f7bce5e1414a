"""Close an execution at a running proxy: its key stops working and its log is final."""

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the proxy's run folder")
    parser.add_argument("name", metavar="NAME", help="name of the execution")


def run(args: argparse.Namespace) -> None:
    import os
    from urllib.parse import quote

    from gyre.proxy.admin_client import control

    # A name may be anything that the shell passes on, and is one part of an address here.
    part = quote(os.fsencode(args.name), safe="")
    control(args.run, "POST", f"executions/{part}/close", {}, execution=args.name)
    print(f"execution {args.name} is closed")
