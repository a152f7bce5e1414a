"""Programs of a local sandbox try to take all there is."""

import asyncio
import signal

import pytest
from tests.sandboxes.support.inside import Inside, ran

from gyre.sandboxes import process_tree
from gyre.sandboxes.process_tree import descendants
from gyre.types.errors import SandboxError
from gyre.types.tasks import Limits

BY_WATCHDOG = {"groups": {}}
"""As on a machine without control groups."""
GUARDS = [{}, BY_WATCHDOG]
FORK_BOMB = """
import os, time
for _ in range(500):
    if os.path.exists("seen"):
        break
    try:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    except OSError:
        pass
while not os.path.exists("seen"):
    time.sleep(0.01)
"""
"""It waits until somebody has seen it, and what it forked stays; more would hurt the machine."""
MEMORY_BOMB = """
import time
x = [bytearray(2**22) for _ in range(64)]
time.sleep(600)
"""
"""Twice what is allowed, and no more however late somebody looks."""
FEW = 2
"""Processes of a sandbox whose program has started none."""


@pytest.mark.parametrize("guard", GUARDS, ids=["cgroup", "watchdog"])
def test_a_fork_bomb_stays_small(guard, tmp_path):
    """It is refused more processes, or killed for them, which takes longer the more there are."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "bomb.py").write_text(FORK_BOMB)
    bomb = "exec /usr/bin/python3 bomb.py"
    inside = Inside(tmp_path, made={"most": Limits(processes=50)} | guard)

    async def explode():
        await inside.start(bomb)
        most = 0
        waiting = asyncio.create_task(inside.sandbox.wait())
        while not waiting.done():
            most = max(most, len(descendants(inside.sandbox.init, most=100)))
            if most > FEW and guard is not BY_WATCHDOG:
                (inside.workspace / "seen").touch()
            await asyncio.sleep(0.02)
        await inside.sandbox.kill()
        return most, waiting.exception()

    most, error = asyncio.run(explode())

    if guard is BY_WATCHDOG:
        assert isinstance(error, SandboxError)
        assert "processes" in str(error)
    else:
        assert FEW < most <= 51


@pytest.mark.parametrize("guard", GUARDS, ids=["cgroup", "watchdog"])
def test_a_memory_bomb_is_ended(guard, tmp_path):
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "bomb.py").write_text(MEMORY_BOMB)

    with pytest.raises(SandboxError, match="bytes of memory"):
        ran(
            tmp_path,
            "exec /usr/bin/python3 bomb.py",
            made={"most": Limits(memory_bytes=2**27)} | guard,
        )


def test_memory_without_a_process_is_little(tmp_path):
    status, _ = ran(tmp_path, "head -c 200000000 /dev/zero > /dev/shm/x")

    assert 0 != status


@pytest.mark.parametrize("where", [".", "$HOME", "/tmp"])
def test_filling_the_disk_is_ended(where, tmp_path, monkeypatch):
    """Its one file is not over; all together are."""
    monkeypatch.setattr(process_tree, "DISK_S", 0.05)
    one_more = "head -c 5000000 /dev/zero > $i; i=$((i+1))"
    fill = f"cd {where}; i=0; while [ $i -lt 20 ]; do {one_more}; done; sleep 600"

    with pytest.raises(SandboxError, match="bytes on disk"):
        ran(tmp_path, fill, made={"most": Limits(disk_bytes=2**25)})


def test_a_file_over_the_limit_ends_its_writer(tmp_path):
    limits = {"most": Limits(disk_bytes=2**25)}
    try:
        status, _ = ran(tmp_path, "exec head -c 50000000 /dev/zero > x", made=limits)
    except SandboxError as error:
        # Whoever looks after the disk may see it full before the writer has ended.
        assert "bytes on disk; 33554432 are allowed" in str(error)  # noqa: PT017
    else:
        assert -signal.SIGXFSZ == status
        assert 2**25 == (tmp_path / "workspace" / "x").stat().st_size
