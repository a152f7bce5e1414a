"""How long frames of the page take, and how soon it is there, with 48 steps of 512 executions.

The page itself is driven from within, frame by frame, so that nothing but it and its browser are
at work; an empty page in the same browser is the floor.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.page.driving import ACTS, FRAMES, OPENED
from benchmarks.peers import results
from playwright.sync_api import BrowserContext, Page
from tests.browser.chromium import launched
from tests.browser.long import NAME, write
from tests.browser.serving import watching
from tests.observability.support.journals import told

from gyre.journal.journal import Durability, Journal
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.simulator.from_journal import header_of
from gyre.simulator.paper import PAPER
from gyre.simulator.world import EventLog, run

STEPS = 48
SCENARIO = replace(PAPER["E0"], shape=replace(PAPER["E0"].shape, steps=STEPS))
"""The paper's run of 512 executions a step, four times as long."""
WINDOW = {"width": 1280, "height": 900}
KNOWN = 0.9
"""Part of the run that has been when the page is opened; the rest comes while it is followed."""
TICK_S = 0.25
PATIENCE_MS = 120_000
TOOL_TOKENS = 400
PACKAGES = ["msgspec", "playwright", "uvicorn", "uvloop"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each act")
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="gyre-page-") as name, launched() as browser:
        folder = Path(name)
        entries = list(_entries(folder / "whole"))
        tree = write(folder / "tree", tool_tokens=TOOL_TOKENS)
        for number in range(args.runs):
            growing = folder / f"growing-{number}"
            context = browser.new_context(viewport=WINDOW)
            for act, sample in _acts(context, folder / "whole", growing, tree, entries, args):
                samples.setdefault(act, []).append(sample)
                print(act, _short(sample), flush=True)
            context.close()
        version = browser.version
    if args.dry:
        return
    path = results.write(
        "page",
        samples=samples,
        settings={
            "steps": STEPS,
            "executions_per_step": 512,
            "calls_of_the_tree": 636,
            "seconds": args.seconds,
            "window": WINDOW,
            "browser": f"Chromium {version}, headless, without a GPU",
        },
        packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
        load_average=(load_before, os.getloadavg()[0]),
    )
    print(path)


def _entries(path: Path) -> Iterator[tuple[float, Any]]:
    """All entries of the run, which is also written whole."""
    log = EventLog()
    run(SCENARIO, log=log)
    entries = list(told((now, event) for now, event, _ in log.entries))
    _begun(path, entries).close()
    yield from entries


def _begun(path: Path, entries: list[tuple[float, Any]]) -> Journal:
    header = header_of(SCENARIO, started_at=0.0)
    journal = Journal.create(path, header, kinds=JOURNAL_EVENTS, durability=Durability.PROCESS)
    for now, fact in entries:
        journal.append(fact, now=now)
    journal.commit()
    return journal


Sample = tuple[str, dict[str, Any]]


def _acts(
    context: BrowserContext,
    whole: Path,
    growing: Path,
    tree: Path,
    entries: list[tuple[float, Any]],
    args: argparse.Namespace,
) -> Iterator[Sample]:
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto("about:blank")
    yield "an empty page", {"frames_ms": _frames(page, "nothing", args.seconds)}
    with watching(whole, tree) as link:
        began = time.monotonic()
        page.goto(link)
        page.wait_for_function(OPENED["run"])
        yield "first load", {"seconds": time.monotonic() - began}
        for act in ("scrubbing", "zooming", "scrolling", "switching views"):
            yield act, {"frames_ms": _frames(page, act, args.seconds)}
        page.goto("about:blank")
        page.goto(f"{link.split('?')[0]}#view=executions&runs=b")
        page.wait_for_function(OPENED["executions"])
        taken_ms = page.evaluate(OPENED["tree"], f"view=tree&runs=b&execution={NAME}")
        yield "opening a tree of 636 calls", {"seconds": taken_ms / 1000}
        yield "scrolling that tree", {"frames_ms": _frames(page, "scrolling a tree", args.seconds)}
    known = entries[: int(KNOWN * len(entries))]
    with _begun(growing, known) as journal, watching(growing) as link:
        page.goto(link)
        page.wait_for_function(OPENED["run"])
        with _grown(journal, entries[len(known) :], args.seconds):
            yield "following", {"frames_ms": _frames(page, "nothing", args.seconds)}


@contextmanager
def _grown(journal: Journal, rest: list[tuple[float, Any]], seconds: float) -> Iterator[None]:
    """The journal gets the rest of its entries, a part at a time."""
    over = threading.Event()
    parts = max(1, int(seconds / TICK_S))

    def work() -> None:
        size = -(-len(rest) // parts)
        for at in range(0, len(rest), size):
            for now, fact in rest[at : at + size]:
                journal.append(fact, now=now)
            journal.commit()
            if over.wait(TICK_S):
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _frames(page: Page, act: str, seconds: float) -> list[float]:
    """Milliseconds from each frame to the next while the page does this to itself."""
    found: list[float] = page.evaluate(FRAMES.replace("ACT", ACTS[act]), 1000 * seconds)
    return found


def _short(sample: dict[str, Any]) -> str:
    if "seconds" in sample:
        return f"{sample['seconds']:.2f} s"
    frames = sorted(sample["frames_ms"])
    p95 = frames[int(0.95 * (len(frames) - 1))]
    return f"{len(frames)} frames, 95 % below {p95:.1f} ms, longest {frames[-1]:.1f} ms"


if __name__ == "__main__":
    main()
