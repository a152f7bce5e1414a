"""Where control groups can be made, on machines with one generation of them or two."""

from pathlib import Path

from gyre.sandboxes.local import cgroups
from gyre.sandboxes.local.cgroups import CgroupParent, ControlGroup, places
from gyre.types.tasks import Limits

FIRST = """\
30 24 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /box /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
"""
FIRST_OWN = "4:memory:/user/one\n3:cpu,cpuacct:/\n2:pids:/box/two\n1:name=systemd:/\n0::/\n"


def second(folder, handed):
    """The mounts of a machine with the second generation, mounted in a folder."""
    group = folder / "slice" / "own"
    group.mkdir(parents=True)
    (group / "cgroup.subtree_control").write_text("")
    (group.parent / "cgroup.subtree_control").write_text(handed)
    return f"30 24 0:26 / {folder} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_controllers_of_the_first_generation_are_found_where_each_is_mounted():
    found = places(FIRST, FIRST_OWN)

    assert {
        "memory": Path("/sys/fs/cgroup/memory/user/one"),
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "pids": Path("/sys/fs/cgroup/pids/two"),
    } == {name: place.folder for name, place in found.items()}
    assert {False} == {place.is_unified for place in found.values()}


def test_in_the_second_generation_groups_are_made_beside_the_own_one(tmp_path):
    """A group that has processes hands no controller on."""
    found = places(second(tmp_path, "memory pids"), "0::/slice/own\n")

    assert {"memory", "pids"} == set(found)
    assert {CgroupParent(folder=tmp_path / "slice", is_unified=True)} == set(found.values())


def test_a_second_generation_without_controllers_changes_nothing(tmp_path):
    mounts = second(tmp_path, "")

    assert {} == places(mounts, "0::/slice/own\n")
    assert places(FIRST, FIRST_OWN) == places(FIRST + mounts, FIRST_OWN)


def test_limits_are_written_in_the_words_of_their_generation(tmp_path):
    limits = Limits(memory_bytes=1000, processes=7, cpus=1.5)
    group = tmp_path / "group"
    ControlGroup(
        "group",
        limits,
        dict.fromkeys(("memory", "pids", "cpu"), CgroupParent(folder=tmp_path, is_unified=True)),
    )

    assert "1000" == (group / "memory.max").read_text()
    assert "7" == (group / "pids.max").read_text()
    assert "150000 100000" == (group / "cpu.max").read_text()

    one = ControlGroup("one", limits, {"cpu": CgroupParent(folder=tmp_path, is_unified=False)})
    assert "150000" == (tmp_path / "one" / "cpu.cfs_quota_us").read_text()
    assert {"cpus-cgroup"} == one.levels


def test_a_group_that_cannot_be_made_is_no_level(tmp_path):
    limits = Limits(memory_bytes=1000)
    made = ControlGroup(
        "x", limits, {"memory": CgroupParent(folder=tmp_path / "no", is_unified=True)}
    )

    assert set() == made.levels
    made.join(1)
    made.remove()


def test_processes_killed_for_memory_are_counted(tmp_path):
    limits = Limits(memory_bytes=1000)
    made = ControlGroup("x", limits, {"memory": CgroupParent(folder=tmp_path, is_unified=True)})
    before = made.num_killed()
    (tmp_path / "x" / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")

    assert (0, 2) == (before, made.num_killed())


def test_a_group_is_removed_once_its_time_is_over_too(tmp_path, monkeypatch):
    """As where whoever removes it stands still for longer than that; one that is busy stays."""
    monkeypatch.setattr(cgroups, "REMOVE_S", 0.0)
    parents = {"memory": CgroupParent(folder=tmp_path, is_unified=True)}
    empty, busy = (
        ControlGroup(name, Limits(memory_bytes=1000), parents) for name in ("empty", "busy")
    )
    for path in (tmp_path / "empty").iterdir():
        path.unlink()
    empty.remove()
    busy.remove()

    assert ["busy"] == [one.name for one in tmp_path.iterdir()]
