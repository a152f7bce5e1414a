"""The run fails when a test is skipped that nobody listed."""

import os
import shutil
import subprocess
import sys

TESTS = {
    "test_one.py": """
import pytest

def test_that_is_skipped():
    pytest.skip("no reason that was agreed on")

@pytest.mark.xfail(reason="known", strict=True)
def test_that_fails_as_expected():
    raise ValueError
""",
    "test_whole.py": """
import pytest

pytest.skip("no reason that was agreed on", allow_module_level=True)
""",
}


def test_an_unexpected_skip_fails_the_run(root, tmp_path):
    for name in ("conftest.py", "durations.json"):
        shutil.copy(root / "tests" / name, tmp_path)
    for name, source in TESTS.items():
        (tmp_path / name).write_text(source)
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    refused = "skipped and not in ALLOWED_SKIPS: Skipped: no reason that was agreed on"

    assert 1 == done.returncode
    assert f"test_one.py::test_that_is_skipped: {refused}" in done.stdout
    assert f"test_whole.py: {refused}" in done.stdout
    assert "1 failed, 1 xfailed, 1 error in" in done.stdout
