"""What comes from other cells changes a rank when it is committed, and not before."""

from dataclasses import replace

import pytest
import torch
from tests.cell.support.live_cells import Started
from tests.contracts.trainer import same, weights_of
from tests.model.support.folders import small

from gyre.cell.checkpoint import planned_network
from gyre.cell.protocol import ExposedWeights, ReduceRequest, StepRequest
from gyre.cell.ranks import protocol
from gyre.cell.ranks.main import open_part
from gyre.model.checkpoint import save
from gyre.types.errors import CellError, InternalError


@pytest.fixture
def ranks(tmp_path):
    """One of the core, and one of a satellite with other weights."""
    (tmp_path / "cells").mkdir()
    cells, made = Started(tmp_path / "cells", tmp_path / "0"), []
    for cell in (0, 1):
        save(small("qwen3", seed=cell), tmp_path / str(cell), version=cell)
        plan = replace(cells.plan(cell), model=str(tmp_path / str(cell)), version=cell)
        rank = open_part(plan, 0, tmp_path / f"store-{cell}", planned_network(plan))
        rank.execute(protocol.ReloadCommand())
        made.append(rank)
    yield made
    for rank in made:
        rank.drop()


def pulled(core, satellite):
    """What the satellite's weights were."""
    bundle = core.execute(protocol.ExposeCommand()).bundle
    before = weights_of(satellite.trainer)
    given = ExposedWeights(version=0, parts=(bundle,))
    satellite.execute(protocol.PullCommand(given=given))
    return before


def test_weights_take_effect_when_they_are_committed(ranks):
    core, satellite = ranks
    before = pulled(core, satellite)
    staged = weights_of(satellite.trainer), satellite.trainer.version
    satellite.execute(protocol.CommitCommand())

    assert same(before, staged[0])
    assert (1, 0) == (staged[1], satellite.trainer.version)
    assert same(weights_of(core.trainer), weights_of(satellite.trainer))
    assert not same(before, weights_of(satellite.trainer))


def test_what_is_aborted_has_no_effect_and_cannot_be_committed(ranks):
    core, satellite = ranks
    before = pulled(core, satellite)
    satellite.execute(protocol.AbortCommand())
    with pytest.raises(InternalError, match="nothing is staged"):
        satellite.execute(protocol.CommitCommand())

    assert (True, 1) == (same(before, weights_of(satellite.trainer)), satellite.trainer.version)


def test_a_sum_is_replaced_once_it_is_committed(ranks):
    core, _ = ranks
    for one in core.trainer.gradients:
        one.fill_(2.0)
    core.execute(ReduceRequest(epoch=0, members=[0], leases={0: []}))
    for one in core.trainer.gradients:
        one.fill_(3.0)
    core.execute(protocol.CommitCommand())

    assert {2.0} == set(torch.cat(core.trainer.gradients).tolist())


def test_a_step_from_another_version_is_refused_by_every_rank(ranks):
    core, _ = ranks
    with pytest.raises(CellError, match="the trainer has version 0"):
        core.execute(StepRequest(version=3))

    assert 1 == core.execute(StepRequest(version=0)).report.version
