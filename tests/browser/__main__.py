"""The browser of the tests from the command line: where it is, and pictures of any address."""

import argparse
from pathlib import Path

from tests.browser.chromium import found, launched


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/browser", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("address", nargs="?", help="a link or a file; none: print where it is")
    parser.add_argument("picture", nargs="?", type=Path, help="the PNG to write")
    parser.add_argument("--size", default="1280x900", help="of the window (default: 1280x900)")
    parser.add_argument("--dark", action="store_true", help="in the dark theme")
    parser.add_argument("--whole", action="store_true", help="the whole length of the page")
    parser.add_argument("--click", action="append", default=[], help="a selector to click first")
    parser.add_argument("--wait-s", type=float, default=1.0, help="before the picture is taken")
    options = parser.parse_args()
    if options.address is None or options.picture is None:
        print(found()[0])
        return
    file = Path(options.address)
    width, height = map(int, options.size.split("x"))
    with launched() as browser:
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if options.dark else "light",
        )
        page.on("console", lambda said: print(f"console {said.type}: {said.text}"))
        page.on("pageerror", lambda error: print(f"error: {error}"))
        page.goto(file.resolve().as_uri() if file.exists() else options.address)
        for selector in options.click:
            page.click(selector)
        page.wait_for_timeout(1000 * options.wait_s)
        page.screenshot(path=options.picture, full_page=options.whole)


if __name__ == "__main__":
    main()
