"""Cells sum at the first of them and take its weights, in groups that a failure outdates."""

from concurrent.futures import ThreadPoolExecutor
from threading import local

import pytest
import torch
from tests.cuda_lending import ThreadsMemory
from tests.waiting import PATIENCE_S

from gyre.trainer.distributed.cell_comm import CellComm, num_bytes
from gyre.trainer.distributed.rank_comm import CommGroup
from gyre.types.errors import CellError


class Cells:
    """Some cells that meet in one file, each in a thread of its own."""

    def __init__(self, folder, count, memory=None):
        self.folder, self.count, self.memory = folder, count, memory
        self._made = []
        self.cells = [self.one(cell) for cell in range(count)]

    def one(self, cell, rank=0):
        made = CellComm(
            self.folder / "store", cell=cell, rank=rank, timeout_s=PATIENCE_S, memory=self.memory
        )
        self._made.append(made)
        return made

    def drop(self):
        for one in self._made:
            one.drop()

    def all(self, act, cells=None):
        """What each came to, errors included."""

        def tried(cell):
            try:
                return act(self.cells[cell], cell)
            except CellError as error:
                return error

        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(tried, range(self.count) if cells is None else cells))


@pytest.fixture
def cells(tmp_path):
    """Makes cells, whose groups are gone in the end."""
    made = []

    def make(count, memory=None):
        made.append(Cells(tmp_path, count, memory))
        return made[-1]

    yield make
    for one in made:
        one.drop()


@pytest.fixture(params=["main memory", "lent memory"])
def three(cells, request):
    return cells(3, ThreadsMemory() if request.param == "lent memory" else None)


def sums_of(cell):
    """Buckets of unlike sizes and types."""
    return [torch.full((5,), 10.0**cell), torch.full((3,), 2**40 + cell, dtype=torch.int64)]


def test_the_first_member_has_the_sum_and_the_others_keep_their_own(three):
    mine = [sums_of(cell) for cell in range(3)]
    found = three.all(lambda one, cell: one.reduced(0, [0, 1, 2], mine[cell]))

    assert [111.0] * 5 == found[0][0].tolist()
    assert [3 * 2**40 + 3] * 3 == found[0][1].tolist()
    for cell in range(3):
        assert all(map(torch.equal, sums_of(cell), mine[cell]))


def test_everybody_has_the_weights_of_the_first_member(three):
    found = three.all(lambda one, cell: one.broadcast_weights(0, [0, 1, 2], sums_of(cell)))

    for one in found:
        assert all(map(torch.equal, sums_of(0), one))


def test_weights_that_arrive_with_another_hash_are_refused(cells, monkeypatch):
    """FAULTS 27."""
    three = cells(3)
    spread, here = CommGroup.broadcast, local()

    def garbled(line, tensor):
        received = spread(line, tensor)
        if here.cell == 1 and received.dtype == torch.int64:
            received.view(torch.uint8)[5] ^= 1
        return received

    def act(one, cell):
        here.cell = cell
        return one.broadcast_weights(0, [0, 1, 2], sums_of(cell))

    monkeypatch.setattr(CommGroup, "broadcast", garbled)
    first, second, third = three.all(act)

    assert "cell 1: weights arrived with another hash" in str(second)
    for one in (first, third):
        assert all(map(torch.equal, sums_of(0), one))


def test_lent_weights_that_arrive_otherwise_are_refused_and_keep_nobody_waiting(cells):
    """FAULTS 27."""

    class Garbling(ThreadsMemory):
        def carried(self, tensors):
            return [one + 1 for one in tensors]

    three = cells(3, ThreadsMemory())
    three.cells[1]._memory = Garbling()
    three.cells[1]._memory.open = three.memory.open

    first, second, third = three.all(
        lambda one, cell: one.broadcast_weights(0, [0, 1, 2], sums_of(cell))
    )

    assert "arrived with another sum" in str(second)
    assert [CellError, CellError] == [type(first), type(third)]
    assert {} == three.memory.open


def test_sums_that_are_taken_back_meanwhile_are_added_to_none(cells):
    """A satellite that gave up may use its memory for something else at any moment."""

    class Hasty(ThreadsMemory):
        def carried(self, tensors):
            self.open.clear()
            return tensors

    three = cells(3, Hasty())
    mine = [sums_of(cell) for cell in range(3)]

    found = three.all(lambda one, cell: one.reduced(0, [0, 1, 2], mine[cell]))

    assert "not lent any more" in str(found[0])
    assert all(map(torch.equal, sums_of(0), mine[0]))


def test_sums_are_not_added_up_twice_for_who_makes_no_copy_of_them(cells):
    class Noting(ThreadsMemory):
        def lend(self, tensors, *, with_sums=True):
            loan = super().lend(tensors, with_sums=with_sums)
            summed.append(bool(loan.lent.sums))
            return loan

    summed = []
    two = cells(2, Noting())
    two.all(lambda one, cell: one.reduced(0, [0, 1], sums_of(cell)))
    two.all(lambda one, cell: one.broadcast_weights(0, [0, 1], sums_of(cell)))

    assert [False, False, False, True] == sorted(summed)


def test_lent_sums_of_another_model_are_refused(cells):
    two = cells(2, ThreadsMemory())

    first, _ = two.all(lambda one, cell: one.reduced(0, [0, 1], [torch.zeros(4 + cell)]))

    assert "expected 1 tensors of 16 bytes in all, found 1 of 20" in str(first)


def test_prefixes_of_an_order_are_met_beforehand(three):
    three.all(lambda one, cell: one.form_groups(0, [0, 1, 2]))
    for members in ([0, 1, 2], [0, 1], [0, 1, 2]):
        found = three.all(lambda one, cell, members=members: one.reduced(0, members, sums_of(cell)))
        expected = sum(10.0**cell for cell in members)

        assert expected == found[0][0][0]
        if 2 not in members:
            assert "not among [0, 1]" in str(found[2])


def test_a_cell_alone_needs_nobody(three):
    (found,) = three.all(lambda one, cell: one.reduced(0, [0], sums_of(cell)), cells=[0])

    assert all(map(torch.equal, sums_of(0), found))


def test_ranks_of_a_cell_meet_their_like_only(cells):
    two = cells(2)
    two.cells = [two.one(cell, rank) for rank in range(2) for cell in range(2)]
    two.count = 4

    def act(one, at):
        rank, cell = divmod(at, 2)
        return one.reduced(0, [0, 1], [torch.tensor([float(100 * rank + cell)])])

    found = two.all(act)

    assert [1.0, 201.0] == [found[0][0].item(), found[2][0].item()]


def test_a_cell_that_drops_out_fails_the_others_at_once(three):
    three.all(lambda one, cell: one.form_groups(0, [0, 1, 2]))

    def act(one, cell):
        if cell == 2:
            one.drop()
            return None
        return one.reduced(0, [0, 1, 2], sums_of(cell))

    first, second, _ = three.all(act)

    assert [CellError, CellError] == [type(first), type(second)]


def test_survivors_meet_in_another_epoch_and_the_old_one_is_over(three):
    three.all(lambda one, cell: one.form_groups(0, [0, 1, 2]))
    three.cells[2].drop()
    three.all(lambda one, cell: one.form_groups(1, [0, 1]), cells=[0, 1])
    found = three.all(lambda one, cell: one.reduced(1, [0, 1], sums_of(cell)), cells=[0, 1])
    late = three.all(lambda one, cell: one.reduced(0, [0, 1], sums_of(cell)), cells=[0, 1])

    assert 11.0 == found[0][0][0]
    assert [True, True] == ["groups of epoch 0 are over" in str(one) for one in late]


def test_a_cell_that_was_started_again_finds_no_traces_of_its_former_life(three):
    three.all(lambda one, cell: one.reduced(0, [0, 1, 2], sums_of(cell)))
    three.cells[2] = three.one(2)
    found = three.all(lambda one, cell: one.reduced(1, [0, 1, 2], sums_of(cell)))

    assert 111.0 == found[0][0][0]


def test_bytes_are_those_of_all_buckets():
    assert 5 * 4 + 3 * 8 == num_bytes(sums_of(0))
