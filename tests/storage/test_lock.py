"""A lock that outlives the process that took it, and that can be asked about."""

import os
import subprocess

import pytest

from gyre.storage import files
from gyre.types.errors import ConfigError


def test_a_lock_is_held_until_it_is_let_go(tmp_path):
    before = files.is_taken(tmp_path)
    held = files.take(tmp_path)
    during = files.is_taken(tmp_path)
    with pytest.raises(ConfigError, match="has a supervisor already"):
        files.take(tmp_path)
    os.close(held)

    assert (False, True, False) == (before, during, files.is_taken(tmp_path))


def test_asking_does_not_let_it_go(tmp_path):
    held = files.take(tmp_path)
    answers = [files.is_taken(tmp_path) for _ in range(3)]
    os.close(held)

    assert [True] * 3 == answers


def test_a_child_holds_what_it_was_handed(tmp_path):
    held = files.take(tmp_path)
    with subprocess.Popen(["sleep", "60"], pass_fds=(held,)) as child:
        os.close(held)
        while_it_lives = files.is_taken(tmp_path)
        child.kill()

    assert (True, False) == (while_it_lives, files.is_taken(tmp_path))
