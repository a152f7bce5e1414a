"""Pictures of the page for docs/pictures, of a recorded run and a simulated one beside it.

`scripts/pictures RUN` takes the folder of a run that `gyre train examples/quickstart.toml` left.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser
from tests.browser.chromium import launched
from tests.browser.serving import ROOT, watching
from tests.browser.shown import Shown

from gyre.storage import call_log

FOLDER = ROOT / "docs" / "pictures"
WIDTH = 1280
TALL = 6000
"""A window in which every panel is drawn at once."""
GAP = 12
OTHER = ("schedule.placement=colocate",)
"""What the simulated run does otherwise."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/pictures", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--late", type=Path, help="another, in which executions timed out")
    parser.add_argument("--to", type=Path, default=FOLDER, help="default: docs/pictures")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gyre-pictures-") as folder, launched() as browser:
        with watching(options.run) as link:
            for theme in ("light", "dark"):
                _take(_opened(browser, link, theme), theme, options.run, options.to)
        with watching(options.late or options.run) as link:
            _distribution(_opened(browser, link, "light"), options.to / "distribution.png")
        again = Path(folder) / "again"
        command = [sys.executable, "-m", "gyre", "simulate", "--from-journal", str(options.run)]
        subprocess.run([*command, *OTHER, "--journal", str(again)], check=True, capture_output=True)
        with watching(options.run, again) as link:
            shown = _opened(browser, link, "light")
            _drawn(shown, "view=run&runs=a,b")
            _until(shown, "water", options.to / "comparison.png")
    for picture in sorted(options.to.glob("*.png")):
        print(f"{picture.name:<20} {picture.stat().st_size / 1024:6.0f} KB")


def _opened(browser: Browser, link: str, theme: Literal["light", "dark"]) -> Shown:
    size = {"width": WIDTH, "height": TALL}
    return Shown(browser.new_context(viewport=size, color_scheme=theme), link)


def _take(shown: Shown, theme: str, run: Path, to: Path) -> None:
    _drawn(shown, "view=run&runs=a")
    if theme == "dark":
        _until(shown, "reward", to / "dark.png")
        return
    _until(shown, "supply", to / "overview.png")
    shown.page.locator("[data-panel=roles]").screenshot(path=to / "timeline.png")
    log = max(call_log.logs(run), key=lambda one: one.stat().st_size)
    shown.page.set_viewport_size({"width": WIDTH, "height": 900})
    shown.go(f"view=tree&runs=a&execution={log.stem}&box=1")
    shown.page.get_by_role("treeitem").first.wait_for()
    shown.page.locator(".reader .call:not(.waiting)").first.wait_for()
    shown.page.screenshot(path=to / "tree.png")


def _distribution(shown: Shown, path: Path) -> None:
    """Once every call log has been read."""
    _drawn(shown, "view=run&runs=a")
    read = re.compile(r"Read from (\S+) sealed call logs of \1 ")
    shown.wait_until(lambda: read.search(shown.panel("trees").inner_text()))
    shown.settle()
    _panels(shown, ["durations", "trees"], path)


def _drawn(shown: Shown, place: str) -> None:
    """Every panel of the view is there."""
    shown.go(place)
    shown.wait_until(
        lambda: shown.page.evaluate("""() => [...document.querySelectorAll("[data-panel]")].every(
            (one) => one.querySelector(".panel-body > *") !== null)""")
    )
    shown.settle()


def _until(shown: Shown, panel: str, path: Path) -> None:
    """The page from its top to the end of a panel."""
    box = shown.page.locator(f"[data-panel={panel}]").bounding_box()
    assert box is not None
    height = box["y"] + box["height"] + GAP
    shown.page.screenshot(path=path, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})


def _panels(shown: Shown, names: list[str], path: Path) -> None:
    """Several panels that stand below one another."""
    boxes = [shown.page.locator(f"[data-panel={name}]").bounding_box() for name in names]
    found = [box for box in boxes if box is not None]
    left, top = (min(box[side] for box in found) for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in found)
    bottom = max(box["y"] + box["height"] for box in found)
    clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    shown.page.screenshot(path=path, clip=clip)


if __name__ == "__main__":
    main()
