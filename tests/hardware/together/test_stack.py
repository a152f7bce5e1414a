"""One run on the stack of the paper: Ray places it, Mooncake moves its weights, vLLM serves it."""

import os

import pytest
from real import installed, training
from tests.flows.live.running import run_live, write_run
from tests.hardware.clusters.nodes import Nodes
from tests.hardware.together import result

from gyre.scheduler.messages import StopReason
from gyre.storage import call_log
from gyre.types.call_records import CallClosed, CallFailed
from gyre.types.run_events import StepMade, WeightsPublished

pytestmark = pytest.mark.together

STEPS = 2


@pytest.fixture
def nodes():
    found = Nodes()
    yield found
    found.close()


def test_it_trains_publishes_and_has_the_weights_that_one_trainer_gets(nodes, tmp_path):
    load = os.getloadavg()[0]
    tables = training.tables(tmp_path, "vllm", weights="memory", steps=STEPS)
    tables["cluster"] = {"kind": "ray", "address": nodes.address, "cell_cpus": 2.0}
    tables["transport"] = {"kind": "mooncake"}
    path = write_run(tmp_path / "run.toml", tables)
    ran = run_live(path)
    expected, norms = training.recomputed(ran, path)
    published = {one.version: one.digest for one in ran.facts(WeightsPublished)}
    records = [one for log in call_log.logs(ran.folder) for one in call_log.read(log).records]
    spans = [span for one in records if isinstance(one, CallClosed) for span in one.spans]

    assert StopReason.FINISHED == ran.reason
    assert norms == {one.step: one.gradient_norm for one in ran.facts(StepMade)}
    assert {version: expected[version] for version in published} == published
    assert published.keys() >= {1}
    assert [] == [one for one in records if isinstance(one, CallFailed)]
    assert 2 == len({span.engine for span in spans})
    sample = {
        "steps": STEPS,
        "rewards": [one.reward for one in ran.facts(StepMade)],
        "published": sorted(published),
        "tokens": sum(span.tokens for span in spans),
    }
    result.write(sample, installed.python("vllm"), (load, os.getloadavg()[0]))
