"""What threads were at is written down, with the CPU that each stack took."""

import json
import threading

import pytest
from benchmarks.gpu.live import spied
from benchmarks.gpu.live.spied import Spy, table
from tests.waiting import wait_until


def busy(over, sums):
    while not over.is_set():
        sums.append(sum(range(1000)))
        del sums[:-1]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Of a thread that has worked until it was seen with some CPU."""
    monkeypatch.setattr(spied, "WRITE_S", 0.02)
    path = tmp_path / "spied" / "cell-0.jsonl"
    over = threading.Event()
    thread = threading.Thread(target=busy, args=(over, []), name="worker")
    spy = Spy(path).start()
    thread.start()
    try:
        wait_until(lambda: any(one["cpu_s"] > 0 and is_busy(one) for one in lines(path)))
    finally:
        over.set()
        thread.join()
    spy.stop()
    return path


def lines(path):
    return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []


def is_busy(one):
    return "worker" == one["stack"][0] and one["stack"][-1].endswith(":busy")


def test_a_thread_that_works_is_seen_in_its_function(written):
    found = [one for one in lines(written) if is_busy(one)]

    assert 0 < sum(one["cpu_s"] for one in found)
    assert 0 < sum(one["seen"] for one in found)
    assert ["worker"] == sorted({one["stack"][0] for one in found})


def test_a_table_says_where_the_cpu_went(written):
    said = table(written)

    assert said[0].startswith("cell-0.jsonl: ")
    assert any("benchmarks/test_gpu_spied.py:busy" in one for one in said)
    assert any(one.startswith("  thread") and one.endswith("worker") for one in said)


def test_who_looks_is_not_seen(written):
    assert [] == [one for one in lines(written) if "spy" == one["stack"][0]]
