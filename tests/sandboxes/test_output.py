"""What programs print is in its file when they have ended."""

import os

import pytest

from gyre.sandboxes import process
from gyre.sandboxes.process import OutputCapture


@pytest.fixture
def kept(tmp_path):
    """The beginning of a file, and a pipe to it that is written to."""
    capture = OutputCapture(tmp_path / "output", 100)
    held = os.dup(capture.pipe)
    capture.close_pipe()
    os.write(held, b"printed")
    yield capture, held
    os.close(held)


def test_a_pipe_that_somebody_still_holds_is_not_waited_for(kept, tmp_path, monkeypatch):
    """What is in it by then is kept, and nothing goes on reading."""
    monkeypatch.setattr(process, "LAST_OUTPUT_S", 0.0)
    capture, held = kept
    capture.finish()
    # Nobody minds to be asked twice.
    capture.finish()

    assert b"printed" == (tmp_path / "output").read_bytes()
    with pytest.raises(BrokenPipeError):
        os.write(held, b"more")
