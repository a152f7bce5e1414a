"""Two ranks on one line, as threads: what is sent arrives, and a failure is no silence."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from tests.waiting import PATIENCE_S
from torch.distributed import HashStore

from gyre.trainer.distributed.rank_comm import RankComm, RankPosition
from gyre.types.errors import CellError, InternalError

CPU = torch.device("cpu")


def both(store, *roles, stages=2, shards=1, timeout_s=PATIENCE_S):
    """Each role as a rank of its own; what they return, in order."""
    all_there = Barrier(len(roles))

    def play(rank):
        place = RankPosition.of(rank, stages=stages, shards=shards)
        lines = RankComm(store, place, device=CPU, timeout_s=timeout_s)
        # One that drops its lines must not do so while another is still connecting.
        all_there.wait(PATIENCE_S)
        return roles[rank](lines)

    with ThreadPoolExecutor(len(roles)) as pool:
        return list(pool.map(play, range(len(roles))))


def test_what_is_sent_arrives_in_order_and_settles():
    def first(lines):
        for number in range(5):
            lines.ahead.send(torch.full((2, 2), number, dtype=torch.float64), 1)
        lines.settle()
        return lines.back.receive(torch.empty(1), 1).item()

    def second(lines):
        found = [
            lines.ahead.receive(torch.empty(2, 2, dtype=torch.float64), 0).sum().item()
            for _ in range(5)
        ]
        lines.back.send(torch.ones(1), 0)
        lines.settle()
        return found

    assert [1.0, [0.0, 4.0, 8.0, 12.0, 16.0]] == both(HashStore(), first, second)


def test_a_tensor_that_is_not_contiguous_arrives_as_it_looks():
    table = torch.arange(6.0).view(2, 3)

    def first(lines):
        lines.ahead.send(table.T, 1)
        lines.settle()

    def second(lines):
        return lines.ahead.receive(torch.empty(3, 2), 0)

    assert table.T.equal(both(HashStore(), first, second)[1])


def test_shards_add_up_spread_and_gather():
    def either(lines):
        mine = torch.tensor([1.0, 10.0]) * (lines.place.shard + 1)
        return (
            lines.within.gather(mine, 2),
            lines.within.add_up(mine.clone()),
            lines.within.broadcast(mine.clone()),
        )

    for gathered, summed, spread in both(HashStore(), either, either, stages=1, shards=2):
        assert [[1.0, 10.0], [2.0, 20.0]] == [one.tolist() for one in gathered]
        assert [3.0, 30.0] == summed.tolist()
        assert [1.0, 10.0] == spread.tolist()


def test_a_rank_that_fails_drops_its_lines_and_its_peer_fails_without_a_time_out():
    def first(lines):
        with pytest.raises(CellError) as error:
            lines.back.receive(torch.empty(1), 1)
        return str(error.value)

    def second(lines):
        with pytest.raises(KeyError), lines.dropped_on_failure():
            raise KeyError
        with pytest.raises(CellError, match="was dropped after an earlier failure"):
            lines.back.send(torch.ones(1), 0)

    said, _ = both(HashStore(), first, second)

    assert "line back0 of stage 0, shard 0 hears nothing from rank 1" in said
    assert "Timed out" not in said


def test_a_peer_that_never_comes_is_an_error_by_name():
    place = RankPosition.of(0, stages=2, shards=1)
    with pytest.raises(CellError, match="line control of stage 0, shard 0 is not there"):
        RankComm(HashStore(), place, device=CPU, timeout_s=0.2)


def test_places_are_numbered_stage_by_stage():
    places = [RankPosition.of(rank, stages=2, shards=3) for rank in range(6)]

    assert [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] == [
        (one.stage, one.shard) for one in places
    ]
    assert list(range(6)) == [one.rank for one in places]
    assert [3] * 6 == [one.reporter for one in places]
    assert [True, False, False, False, False, False] == [one.is_driver for one in places]


@pytest.mark.parametrize("rank", [-1, 6])
def test_a_place_outside_the_cell_is_refused(rank):
    with pytest.raises(InternalError, match="no such place"):
        RankPosition.of(rank, stages=2, shards=3)
