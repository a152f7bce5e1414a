"""A cell of several ranks does what a cell of one rank does, and ends when one of them does."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.cell.support.live_cells import (
    CHANGE,
    OPTIMIZER,
    Batch,
    Started,
    join,
    moved,
    of_version,
    reduced,
    started,
    train,
    weights,
)
from tests.controller.support.forked_cells import fork_clients
from tests.trainer.support.cells import worst
from tests.trainer.support.scenes import NUM_EXECUTIONS
from tests.waiting import PATIENCE_S

from gyre.cell.weight_sync import fetched, whole_cuts
from gyre.config.sections import LossConfig, TrainerConfig
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import read
from gyre.model.loader import load_network
from gyre.scheduler.messages import CellDied
from gyre.trainer.trainer import Trainer
from gyre.transports.shared_memory import SharedTransport
from gyre.types.errors import CellError, CellGone
from gyre.types.run_events import StepMade, WeightsPublished

pytestmark = pytest.mark.slow
cells_are_forked = fork_clients("gyre.cell.main")
NUM_STEPS = 2


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """Of a model whose head is its embedding, so that both ends of a pipeline hold it."""
    return Batch(tmp_path_factory.mktemp("model") / "model", "qwen2")


@pytest.fixture(scope="module")
def alone(batch):
    """One trainer's reports, norms and weights after two steps."""
    trainer = Trainer(
        load_network(batch.model),
        section=TrainerConfig(),
        objective=LossConfig(),
        optimizer=OPTIMIZER,
    )
    reports, norms = [], []
    for _ in range(NUM_STEPS):
        for claim in batch.claims:
            reports.append(trainer.train(claim, num_executions=NUM_EXECUTIONS))
        norms.append(trainer.step().gradient_norm)
    tensors = {name: one.detach() for name, one in trainer.network.module.named_parameters()}
    return reports, norms, tensors


@pytest.fixture(scope="module")
def cells(tmp_path_factory, batch):
    """Two cells of two stages each."""
    with started(tmp_path_factory.mktemp("cells"), batch.model, 0, 1, stages=2) as made:
        yield made


async def all_claims(client, batch, scored):
    """As many at once as the cell takes; what each came to, in order."""

    async def one(claim):
        scores = await client.score(batch.bytes[claim]) if scored else None
        return await train(client, batch, claim, scores=scores)

    return await asyncio.gather(*(one(claim) for claim in range(len(batch.claims))))


async def two_steps(client, batch, folder):
    """Of one cell, with scores sent along in the first step and made there in the second."""
    await client.enter()
    reports, norms = [], []
    for scored in (True, False):
        reports += await all_claims(client, batch, scored)
        leases = list(range(len(batch.claims)))
        assert 0 == await client.reduce(0, [0], {0: leases})
        version = (await client.health()).trainer_version
        norms.append((await client.step(version)).gradient_norm)
    _, tensors = await weights(client, folder)
    return reports, norms, tensors


def assert_alike(batch, expected, found):
    """To the rounding of sums in another order."""
    (reports, norms, tensors), (others, other_norms, other_tensors) = expected, found
    assert all(0 < one for one in norms)
    assert pytest.approx(norms, rel=1e-4) == other_norms
    assert CHANGE > worst(moved(batch, tensors), moved(batch, other_tensors))
    for report, other in zip(reports, others, strict=True):
        assert pytest.approx(report.loss, rel=1e-3, abs=1e-6) == other.loss
        assert report.measures.num_targets == other.measures.num_targets
        assert clipped(report) == clipped(other)


def clipped(report):
    return report.measures.num_raised_clipped, report.measures.num_lowered_clipped


def test_a_cell_of_two_stages_gives_the_update_of_one_rank(cells, batch, alone, tmp_path):
    """SPEC 3.5, 8.3."""

    async def scenario(clients):
        assert 3 == (await clients[0].health()).claims_at_once
        return await two_steps(clients[0], batch, tmp_path / "v")

    found = cells.run(scenario)

    assert_alike(batch, alone, found)
    # Or nothing would be seen of packs that pass forward only.
    assert 0 < sum(report.work.num_skipped for report in found[0])


def test_a_cell_of_two_shards_gives_the_update_of_one_rank(batch, alone, tmp_path):
    with started(tmp_path, batch.model, 0, shards=2) as made:
        found = made.run(lambda clients: two_steps(clients[0], batch, tmp_path / "v"))

    assert_alike(batch, alone, found)


def test_two_cells_of_two_stages_make_one_update_and_share_it(cells, batch, tmp_path):
    """Their weights are the same bits afterwards, whether spread or pulled (SPEC 3.3)."""

    async def scenario(clients):
        await join(clients, 0, 1)
        await asyncio.gather(*(clients[cell].form_groups(0, [0, 1]) for cell in clients))
        version = (await clients[0].health()).trainer_version
        await asyncio.gather(*(train(clients[claim % 2], batch, claim) for claim in range(6)))
        sent = await reduced(clients, 0, {0: [0, 2, 4], 1: [1, 3, 5]})
        step = await clients[0].step(version)
        spread = (one.broadcast_weights(0, [0, 1], step.version) for one in clients.values())
        await asyncio.gather(*spread)
        digests = [(await weights(clients[one], tmp_path / f"{one}"))[0] for one in (0, 1)]
        await clients[1].pull(await clients[0].expose())
        digests.append((await weights(clients[1], tmp_path / "pulled"))[0])
        versions = {(await one.health()).trainer_version for one in clients.values()}
        empty = await reduced(clients, 0, {0: [], 1: []})
        return version, sent, digests, versions, empty

    version, sent, digests, versions, empty = cells.run(scenario)

    assert 0 == sent[0] < sent[1]
    assert 1 == len(set(digests))
    assert {version + 1} == versions
    assert sent == empty


def test_weights_are_pulled_by_all_ranks_or_by_none(cells, tmp_path):
    async def scenario(clients):
        await join(clients, 0, 1)
        exposed = await clients[0].expose()
        before, _ = await weights(clients[1], tmp_path / "before")
        path = cells.share / exposed.parts[1].exposure.peer
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 64]))
        with pytest.raises(CellError, match="expected hash"):
            await clients[1].pull(of_version(exposed, 7))
        path.write_bytes(whole)
        with pytest.raises(CellError, match=r"expected somebody who holds it|nobody holds"):
            await clients[1].pull(replace(exposed, parts=exposed.parts[:1]))
        version = (await clients[1].health()).trainer_version
        after, _ = await weights(clients[1], tmp_path / "after")
        await clients[1].pull(exposed)
        return before == after, version, exposed.version

    unchanged, version, exposed = cells.run(scenario)

    assert unchanged
    assert exposed == version


def test_weights_in_parts_of_ranks_are_put_together_whole(cells, tmp_path):
    """As an engine of another cell needs them, which has no ranks."""

    async def scenario(clients):
        await join(clients, 0)
        exposed = await clients[0].expose()
        _, whole = await weights(clients[0], tmp_path / "saved")
        transport = SharedTransport(cells.share, owner="reader")
        cuts = whole_cuts({name: one.shape for name, one in whole.items()})
        return whole, fetched(transport, exposed.parts, cuts, version=exposed.version), exposed

    whole, found, exposed = cells.run(scenario)

    assert 2 == len(exposed.parts)
    assert set(whole) == set(found)
    assert [] == [name for name, one in whole.items() if not torch.equal(one, found[name])]


def test_a_sum_waits_for_its_cell_and_is_of_its_leases_only(cells, batch):
    """What is in flight is brought back before anything rests (SPEC 2.5, 3.5)."""

    async def scenario(clients):
        await join(clients, 0)
        await train(clients[0], batch, 0)
        with pytest.raises(CellError, match="lease 0 is in the sum already"):
            await train(clients[0], batch, 0)
        await clients[0].leave(keep_sum=True)
        with pytest.raises(CellError, match="restore it first"):
            await train(clients[0], batch, 1)
        await clients[0].enter()
        await train(clients[0], batch, 1)
        wrong = await reduced(clients, 0, {0: [0]})
        right = await reduced(clients, 0, {0: [0, 1]})
        await clients[0].leave(keep_sum=False)
        await clients[0].enter()
        return wrong, right, await reduced(clients, 0, {0: []})

    wrong, right, empty = cells.run(scenario)

    assert "not of its leases: [1]" in str(wrong[0])
    assert [0] == right == empty


def test_a_claim_that_cannot_be_is_refused_alone(cells, batch):
    async def scenario(clients):
        await join(clients, 0)
        claim = batch.claims[0]
        scores = await clients[0].score(batch.bytes[0])
        with pytest.raises(CellError, match="expected as many"):
            await train(clients[0], batch, 0, scores=scores + scores)
        with pytest.raises(CellError, match="expected the bytes of a claim"):
            await clients[0].train(b"garbage", lease=1, num_executions=1, scores=None)
        await train(clients[0], batch, 0)
        return len(claim.shares), len(scores)

    shares, scores = cells.run(scenario)

    assert shares == scores


def test_a_satellite_of_several_ranks_takes_no_step(cells):
    async def scenario(clients):
        await join(clients, 0, 1)
        with pytest.raises(CellError, match="no optimizer"):
            await clients[1].step((await clients[1].health()).trainer_version)
        with pytest.raises(CellError, match="from version 99"):
            await clients[0].step(99)
        return await reduced(clients, 0, {0: []})

    assert [0] == cells.run(scenario)


def test_a_model_that_cannot_be_split_so_is_refused_by_name(tmp_path):
    made = Started(tmp_path, "tiny", shards=2)
    try:
        with pytest.raises(AssertionError) as refused:
            made.start(0)
    finally:
        made.stop()

    assert 1 == made.processes[0].returncode
    assert "ModelError: 3 key-value heads cannot be split over 2 ranks" in str(refused.value)


def followers_of(process):
    """Processes that a cell has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process.pid:
            found.append(int(folder.name))
    return found


def test_the_death_of_a_rank_ends_its_cell_and_no_other(cells, batch):
    """In the middle of a reduction, which fails at once and whose sums are as they were."""

    async def scenario(clients):
        await join(clients, 0, 1)
        await asyncio.gather(*(clients[cell].form_groups(5, [0, 1]) for cell in clients))
        await asyncio.gather(*(train(clients[claim], batch, claim) for claim in (0, 1)))
        waiting = asyncio.ensure_future(clients[0].reduce(5, [0, 1], {0: [0], 1: [1]}))
        (follower,) = followers_of(cells.processes[1])
        os.kill(follower, signal.SIGKILL)
        status = await asyncio.to_thread(cells.processes[1].wait)
        with pytest.raises(CellError) as failed:
            await waiting
        with pytest.raises(CellGone):
            await clients.pop(1).health()
        await clients[0].form_groups(6, [0])
        return failed.value, status, await reduced(clients, 6, {0: [0]})

    failure, status, alone = cells.run(scenario)

    assert not isinstance(failure, CellGone)
    assert 1 == status
    assert [0] == alone
    assert "rank 1 of the cell ended" in cells.logs()["1.log"]


def test_the_other_ranks_end_with_their_driver(cells):
    driver = cells.processes[0]
    (follower,) = followers_of(driver)
    watched = os.pidfd_open(follower)
    driver.kill()
    driver.wait()
    done, *_ = select.select([watched], [], [], PATIENCE_S)
    os.close(watched)

    assert [watched] == done


AGENT = """
import http.client, json, os, sys, urllib.parse
place = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
member = place.path.split("/")[2][-2:]
messages = [{"role": "user", "content": sys.argv[1] + " You are number " + member + "."}]
for turn in range(2):
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=180)
    body = json.dumps({"model": "policy", "messages": messages})
    headers["content-type"] = "application/json"
    connection.request("POST", place.path + "/chat/completions", body, headers)
    reply = json.loads(connection.getresponse().read())["choices"][0]["message"]
    messages += [{"role": "assistant", "content": reply.get("content") or ""}]
    messages += [{"role": "user", "content": "again"}]
open("answer.txt", "w").write("0." + member)
"""
"""Each member of a group asks something else and has a reward of its own, whatever is sampled."""
TASK = """
instruction = "Say something."
[evaluation]
argv = ["sh", "-c", "cp answer.txt $GYRE_RESULTS/reward.txt"]
score = "reward.txt"
"""
RUN = """
[run]
name = "ranked"
folder = "{folder}/run"
[model]
name = "tiny"
[schedule]
groups_per_batch = 2
executions_per_group = 4
steps_per_burst = {burst}
steps = 2
supply_dwell_s = 0.1
placement = "{placement}"
lease_s = 600
group_s = 600
join_s = 600
[cells]
count = 2
stages = 2
capacity = 4
standalone = {standalone}
[engine]
kv_tokens = 16384
[tasks]
kind = "folder"
path = "{folder}/tasks"
[harness]
argv = ["python3", "-S", "{folder}/agent.py", "{{instruction}}"]
[deadlines]
agent_s = 300
overall_s = 600
[sampling]
max_tokens = 16
[proxy]
port = 0
[trainer]
pack_tokens = 64
claim_packs = 1
"""


@pytest.mark.parametrize(
    ("placement", "standalone", "burst"), [("elastic", [], 1), ("async", [8], 2)]
)
def test_a_run_trains_with_cells_of_two_stages(tmp_path, placement, standalone, burst):
    """Two bursts of a step in turns with serving, and one of two steps beside it."""
    (tmp_path / "agent.py").write_text(AGENT)
    for number in range(4):
        folder = tmp_path / "tasks" / f"t{number}"
        folder.mkdir(parents=True)
        (folder / "task.toml").write_text(TASK)
    how = {"placement": placement, "standalone": standalone, "burst": burst}
    text = RUN.format(folder=tmp_path, **how)
    (tmp_path / "run.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "gyre", "train", str(tmp_path / "run.toml")],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    reading = read(tmp_path / "run" / "journal", kinds=JOURNAL_EVENTS)
    steps = [fact for _, fact in reading.facts((StepMade,))]
    published = [fact.version for _, fact in reading.facts((WeightsPublished,))]

    assert [0, 1] == [one.step for one in steps]
    assert [*range(burst, 3, burst)] == published
    assert all(0 < one.gradient_norm for one in steps)
    assert [] == reading.facts((CellDied,))
    if placement == "async":
        # Both cells train from the start, and the sums of both are in every step.
        assert all(0 < one.reduced_bytes for one in steps)
        assert [{0, 1}] * 2 == [set(one.claims) for one in steps]
