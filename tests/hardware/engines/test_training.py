"""gyre train with real servers in the cells: it publishes to them, and its weights are right."""

import pytest
from real import training
from real.cells import NEAR
from tests.flows.live.running import run_live, write_run

from gyre.scheduler.messages import CellDied, CellTraining, StopReason
from gyre.storage import call_log
from gyre.types.call_records import CallClosed, CallFailed
from gyre.types.run_events import ClaimTrained, StepMade, WeightsPublished

pytestmark = pytest.mark.engines

STEPS = 3


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def ran(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    tables = training.tables(folder, kind, weights="memory", steps=STEPS)
    path = write_run(folder / "run.toml", tables)
    return run_live(path), path


@pytest.fixture(autouse=True)
def _of_engine(kind, record_property):
    record_property("engine", kind)


def test_a_run_with_servers_in_its_cells_takes_all_its_steps(ran, record_property):
    found, _ = ran
    steps = found.facts(StepMade)
    record_property("rewards", [one.reward for one in steps])

    assert StopReason.FINISHED == found.reason
    assert list(range(STEPS)) == [one.step for one in steps]
    assert all(one.gradient_norm > 0 for one in steps)
    assert {0} <= {one.cell for one in found.facts(CellTraining)}
    assert [] == found.facts(CellDied)


def test_its_servers_said_of_their_tokens_what_the_trainer_computes(ran, record_property):
    """T28: step 0 is of the weights that everything was sampled with."""
    found, _ = ran
    gaps = [one.measures.max_gap for one in found.facts(ClaimTrained) if one.step == 0]
    record_property("max_gap", max(gaps))

    assert max(gaps) < NEAR


def test_what_it_published_is_what_one_trainer_gets_from_its_journal(ran):
    """So that ids, log-probabilities and versions that they gave were whole."""
    found, path = ran
    expected, norms = training.recomputed(found, path)
    published = {one.version: one.digest for one in found.facts(WeightsPublished)}

    assert set(range(1, STEPS + 1)) >= published.keys() >= {1}
    assert {version: expected[version] for version in published} == published
    assert norms == {one.step: one.gradient_norm for one in found.facts(StepMade)}


def test_its_calls_were_sampled_by_both_servers_under_the_weights_of_their_time(ran):
    found, _ = ran
    records = [one for path in call_log.logs(found.folder) for one in call_log.read(path).records]
    done = [one for one in records if isinstance(one, CallClosed)]
    spans = [span for one in done for span in one.spans]

    assert [] == [one for one in records if isinstance(one, CallFailed)]
    assert {0, 1} <= {span.version for span in spans}
    assert 2 == len({span.engine for span in spans})
