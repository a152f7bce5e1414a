"""A run as a job of a real Ray cluster, which starts the controller on its head."""

import sys
import time

import pytest
from tests.hardware.clusters.nodes import OTHERS, Nodes
from tests.hardware.clusters.test_runs import hosts, left, written

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import read
from gyre.scheduler.messages import StepTaken

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def nodes():
    made = Nodes(takes_jobs=True)
    yield made
    made.close()


def test_a_run_that_is_submitted_as_a_job_finds_the_cluster_by_itself(nodes, tmp_path):
    from ray.job_submission import JobStatus, JobSubmissionClient

    path = written(tmp_path, nodes, {"cluster": {"address": "auto"}}, trains=False)
    client = JobSubmissionClient(nodes.jobs)
    job = client.submit_job(entrypoint=f"{sys.executable} -m gyre train {path}")
    until = time.monotonic() + PATIENCE_S
    while not (status := client.get_job_status(job)).is_terminal() and time.monotonic() < until:
        time.sleep(0.5)

    assert JobStatus.SUCCEEDED == status, client.get_job_logs(job)
    taken = [
        fact
        for _, fact in read(tmp_path / "run" / "journal", kinds=JOURNAL_EVENTS).facts(
            JOURNAL_EVENTS
        )
    ]
    assert [0, 1, 2, 3] == [one.step for one in taken if isinstance(one, StepTaken)]
    assert set(OTHERS) == set(hosts(tmp_path))
    assert [] == left(tmp_path / "run")
