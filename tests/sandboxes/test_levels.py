"""Machines of the tests hold programs back as far as a committed file says."""

import asyncio

from tests.sandboxes.support.daemon import expected
from tests.sandboxes.support.inside import Inside

from gyre.types.tasks import Limits

SOME = Limits(memory_bytes=2**28, processes=50, disk_bytes=2**28)


async def levels(inside):
    await inside.start("true")
    found = inside.sandbox.levels
    await inside.sandbox.kill()
    return found


def test_a_local_sandbox_has_the_levels_that_this_machine_must_have(tmp_path):
    assert expected("local") == list(asyncio.run(levels(Inside(tmp_path, made={"most": SOME}))))


def test_without_control_groups_a_lower_level_is_told(tmp_path):
    found = asyncio.run(levels(Inside(tmp_path, made={"most": SOME, "groups": {}})))

    assert {"memory", "pids"} <= set(found)
    assert not {"memory-cgroup", "pids-cgroup"} & set(found)


def test_what_has_no_limit_is_not_said_to_be_bounded(tmp_path):
    found = asyncio.run(levels(Inside(tmp_path)))

    assert not {"memory", "memory-cgroup", "pids", "pids-cgroup", "disk"} & set(found)
