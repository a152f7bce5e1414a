"""The run fails when a test is skipped that nobody listed."""

import shutil
import subprocess
import sys

import pytest

SKIPPED_TEST = """
import pytest

def test_that_is_skipped():
    pytest.skip("no reason that was agreed on")
"""
SKIPPED_MODULE = """
import pytest

pytest.skip("no reason that was agreed on", allow_module_level=True)
"""
EXPECTED_FAILURE = """
import pytest

@pytest.mark.xfail(reason="known", strict=True)
def test_that_fails_as_expected():
    raise ValueError
"""


@pytest.mark.parametrize(
    ("source", "passes"),
    [(SKIPPED_TEST, False), (SKIPPED_MODULE, False), (EXPECTED_FAILURE, True)],
    ids=["a test", "a module", "an expected failure"],
)
def test_an_unexpected_skip_fails_the_run(root, tmp_path, source, passes):
    shutil.copy(root / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(source)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            ".",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert passes == (done.returncode == 0)
    assert passes != ("skipped and not in ALLOWED_SKIPS" in done.stdout)
