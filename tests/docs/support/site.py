"""The site, built strictly: a page without a place, or a link without an end, is refused."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.support.pages import ROOT


def build(folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert 0 == done.returncode, done.stderr
    return folder
