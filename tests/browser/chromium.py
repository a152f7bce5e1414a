"""A Chromium for the tests: the one on the path, or Debian's, unpacked and not installed."""

import fcntl
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from tests.waiting import PATIENCE_S

CACHE = Path.home() / ".cache" / "gyre"
EXPECTED = Path(__file__).with_name("expected.toml")
FONTS = ("fonts-inter", "fonts-dejavu-core")
FLAGS = ("--disable-gpu", "--disable-quic", "--font-render-hinting=none")
"""Beside Playwright's own: no sandbox, first run, updates, sync or requests in the background."""
_FONTS_CONF = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{root}/usr/share/fonts</dir>
  <cachedir>{root}/fonts-cache</cachedir>
  <alias binding="strong"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="strong"><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <alias><family>Inter</family><default><family>DejaVu Sans</family></default></alias>
</fontconfig>
"""


def environment() -> str:
    """What this machine is, as the file of expectations calls it."""
    if shutil.which("chromium"):
        return "chromium-on-the-path"
    release = Path("/etc/os-release")
    debian = release.exists() and "ID=debian" in release.read_text().splitlines()
    if debian and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        return "debian"
    return "other"


def expected() -> bool | str:
    """Whether there is a browser on this machine, or why there is none."""
    found: bool | str = tomllib.loads(EXPECTED.read_text())[environment()]["browser"]
    return found


def found() -> tuple[Path, dict[str, str]]:
    """The program and the environment that it needs; fetched the first time."""
    if on_path := shutil.which("chromium"):
        return Path(on_path), dict(os.environ)
    root = fetched()
    libraries = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu/pulseaudio")]
    given = {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}
    given["FONTCONFIG_FILE"] = str(root / "fonts.conf")
    return root / "usr/lib/chromium/chromium", os.environ | given


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser that asks nothing of any network by itself and ends with the block."""
    program, given = found()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=list(FLAGS),
            env=dict(given),
            timeout=1000 * PATIENCE_S,
        )
        try:
            yield browser
        finally:
            browser.close()


def fetched() -> Path:
    """The folder that the packages are unpacked in; nothing is installed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = sorted(CACHE.glob("chromium-*/complete"), key=lambda one: one.stat().st_mtime)
        return complete[-1].parent if complete else _fetch()


def _fetch() -> Path:
    try:
        packages = _missing()
        version = _download(packages)
    except subprocess.CalledProcessError:
        # A fresh machine may know no packages yet, or ones that are gone.
        subprocess.run(["apt-get", "update"], capture_output=True, check=True)
        packages = _missing()
        version = _download(packages)
    root = CACHE / f"chromium-{version}"
    for package in sorted((CACHE / "chromium.fetching").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    shutil.rmtree(CACHE / "chromium.fetching")
    (root / "fonts.conf").write_text(_FONTS_CONF.format(root=root))
    (root / "complete").touch()
    return root


def _missing() -> list[str]:
    """Packages that an installation would add, and the fonts."""
    command = ["apt-get", "install", "-s", "--no-install-recommends", "chromium"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in said.splitlines() if line.startswith("Inst ")]
    return sorted({line[1] for line in lines} | set(FONTS))


def _download(packages: list[str]) -> str:
    """The version of the browser, which now lies with the others in the folder for it."""
    folder = CACHE / "chromium.fetching"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o777)
    command = ["apt-get", "download", *packages]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    (browser,) = folder.glob("chromium_*.deb")
    return browser.name.split("_")[1].partition("-")[0]
