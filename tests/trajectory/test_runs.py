"""What is read is a run, or the error says why not."""

import pytest

from gyre.storage.call_log import CallLog
from gyre.trajectory.loading import find, load
from gyre.types.call_records import CallDelivered
from gyre.types.errors import ConfigError, LogDamaged
from gyre.types.ids import CallId


def test_a_run_folder_gives_its_logs_in_order(make_story, tmp_path):
    paths = [make_story(execution=name).write(tmp_path) for name in ("b", "a", "c")]

    assert sorted(paths) == find(tmp_path)
    assert [paths[2]] == find(tmp_path, "c")
    assert [paths[0]] == find(paths[0])


def test_a_run_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: no such run folder or call log"):
        find(tmp_path / "nowhere")


def test_a_folder_without_logs_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="call logs in executions/, found none"):
        find(tmp_path)


def test_an_unknown_execution_is_answered_with_those_that_exist(make_story, tmp_path):
    for number in range(10):
        make_story(execution=f"e{number}").write(tmp_path)

    with pytest.raises(ConfigError, match=r"no execution z; it has e0, e1, .*, e7 and 2 more$"):
        find(tmp_path, "z")


def test_a_log_gives_its_tree_and_its_name(errand, tmp_path):
    loaded = load(errand.write(tmp_path))

    assert ("x", 0, 11) == (loaded.execution, loaded.torn_bytes, len(loaded.tree.calls))
    assert tuple(errand.records) == loaded.records


def test_a_torn_tail_is_left_out_and_measured(errand, tmp_path):
    path = errand.write(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])

    assert 0 < load(path).torn_bytes
    assert load(path).tree.is_complete


def test_a_log_that_was_never_begun_is_named_after_its_file(tmp_path):
    path = tmp_path / "early.calls"
    path.write_bytes(b"GYRE")

    assert ("early", {}) == (load(path).execution, load(path).tree.calls)


def test_damage_in_the_middle_is_reported_with_its_place(errand, tmp_path):
    path = errand.write(tmp_path)
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)

    with pytest.raises(LogDamaged, match=r"x\.calls: damaged at byte \d+"):
        load(path)


def test_a_record_of_a_call_that_is_not_there_is_damage(make_story, tmp_path):
    path = make_story().write(tmp_path)
    log = CallLog(path, sound_bytes=path.stat().st_size)
    log.append(CallDelivered(call=CallId(7)))
    log.close()

    with pytest.raises(LogDamaged, match="record 2 refers to a call or segment that is not there"):
        load(path)


def test_a_log_that_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "executions" / "x.calls"
    path.mkdir(parents=True)

    with pytest.raises(ConfigError, match=r"x\.calls: cannot be read: Is a directory"):
        load(path)
