"""Processes of a live run, found through its folder, and what is done to them."""

import os
import signal
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Literal

from gyre.cluster.process import holds_log
from gyre.rollout.main import LOG_FILE
from gyre.storage.files import is_proxy, proxy_address_file

Kind = Literal["core", "satellite", "engine", "proxy", "supervisor", "controller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A process that lives."""

    kind: Kind
    name: str
    pid: int

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def kind_of(name: str) -> Kind:
    """Of a process by the name that its log has."""
    if is_proxy(name):
        return "proxy"
    if name == "cell-0":
        return "core"
    return "satellite" if name.startswith("cell-") else "engine"


def victims(run: Path) -> list[Victim]:
    """Everybody but the controller; a number that was given to another program is left out."""
    found = []
    for path in sorted((run / "pids").glob("*")):
        with suppress(OSError, ValueError):
            pid = int(path.read_text())
            if holds_log(pid, run / "logs" / f"{path.name}.log"):
                found.append(Victim(kind=kind_of(path.name), name=path.name, pid=pid))
    return [*found, *supervisors(run)]


def supervisors(run: Path) -> list[Victim]:
    """Whoever writes its errors to an execution's log; of several the first is their parent."""
    logs = {folder / LOG_FILE: folder.name for folder in (run.resolve() / "attempts").glob("*")}
    found: dict[str, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            log = (place / "fd" / "2").readlink()
            if log in logs:
                pid = int(place.name)
                found[logs[log]] = min(pid, found.get(logs[log], pid))
    return [Victim(kind="supervisor", name=name, pid=found[name]) for name in sorted(found)]


def calls_in_flight(run: Path) -> int | None:
    """Those that the proxy has; None where it does not answer."""
    try:
        url = proxy_address_file(run).read_text().strip()
        with urllib.request.urlopen(f"{url}/metrics", timeout=2) as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith("gyre_calls_in_flight ")]
        return int(float(value))
    except (OSError, ValueError, HTTPException):
        # Its port may be another program's, or its answer end in the middle.
        return None
