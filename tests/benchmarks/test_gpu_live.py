"""The live comparison on a GPU: its work, its model, and what the simulator foretells of it."""

import asyncio
import gzip
import json
import os
import subprocess
from array import array

import pytest
from benchmarks.gpu.live import measured, model, predict, runs, warmed, work
from benchmarks.gpu.live.compare import live_variant
from benchmarks.gpu.live.predict import Calibration
from benchmarks.gpu.live.work import Execution, Scale
from benchmarks.live.running import Ran, Used
from benchmarks.peers import results

from gyre import calls
from gyre.backends.renderers.load import load_renderer
from gyre.journal.reading import read
from gyre.journal.writing import write
from gyre.model.load import load_network
from gyre.plan.replay import EVENTS
from gyre.run.controller import KINDS
from gyre.sim.asked import journaled
from gyre.sim.durations import HOUR_S
from gyre.sim.recorded import header_of
from gyre.sim.workload import NL2REPO_122B, Draws
from gyre.sim.world import run
from gyre.stream.queries import Queries
from gyre.words.ids import CallId, ExecutionId
from gyre.words.records import FORMAT, CallFailed, LogOpened
from gyre.words.samples import Ask, Sampling
from gyre.words.sections import EngineSection, ObjectiveSection, OptimizerSection, TrainerSection

PLANTED = Calibration(
    costs={
        "groups_per_node_hour": 3600.0,
        "into_training_s": 0.6,
        "out_of_training_s": 0.5,
        "pull_s": 0.2,
        "update_s": 0.3,
        "publication_s": 0.4,
    },
    per_execution_s=0.5,
    per_call_s=0.2,
    per_token_s=0.015,
)
SCALE = Scale(mean_s=19.3, tokens_per_s=100.0, turn_s=2.0, told_fraction=0.5)
"""An hour of the paper is ten seconds."""


def test_executions_take_what_the_simulator_draws_for_them():
    found = work.work(SCALE, groups=5, members=4, seed=7)
    drawn = [Draws(NL2REPO_122B, seed=7, group_size=4).group(number) for number in range(5)]
    for group, expected in zip(found, drawn, strict=True):
        for one, execution in zip(group, expected, strict=True):
            hours = execution.course(NL2REPO_122B.deadlines).rollout_s / HOUR_S
            evaluation_s = min(work.FOREVER_S, 10 * execution.evaluation_s / HOUR_S)

            assert 10 * hours == pytest.approx(one.tool_s + one.num_tokens / 100.0, rel=0.02)
            assert evaluation_s == pytest.approx(one.evaluation_s)


def test_the_nth_query_of_a_run_is_the_nth_group(tmp_path):
    groups = work.work(SCALE, groups=12, members=2, seed=3)
    tasks = work.write_tasks(tmp_path / "tasks.jsonl", groups, seed=3).read_text().splitlines()
    queries = Queries(12, seed=3)
    drawn = [json.loads(tasks[queries.draw()]) for _ in range(12)]
    found = [json.loads(one["instruction"])["members"] for one in drawn]

    assert [[list(map(dict, one.turns)) for one in group] for group in groups] == found


@pytest.mark.parametrize(("name", "expected"), [("g3-0", "1.000"), ("g3-1", "20.000")])
def test_an_assessment_takes_the_time_of_its_own_execution(tmp_path, name, expected):
    group = [Execution(turns=(), evaluation_s=seconds) for seconds in (1.0, 20.0)]
    tasks = work.write_tasks(tmp_path / "tasks.jsonl", [group], seed=0)
    shell, flag, script = json.loads(tasks.read_text())["evaluation"]["argv"]
    (tmp_path / "address").write_text(f"http://127.0.0.1:80/exec/{name}/v1\n")
    (tmp_path / "replies.txt").write_text("done\n")
    noted = f"sleep() {{ echo $1 > slept; }}; {script}"
    environment = {"PATH": os.environ["PATH"], "GYRE_RESULTS": str(tmp_path)}
    subprocess.run([shell, flag, noted], check=True, cwd=tmp_path, env=environment)

    assert f"{expected}\n" == (tmp_path / "slept").read_text()
    assert 0 <= float((tmp_path / "reward.txt").read_text()) < 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model.made(tmp_path_factory.mktemp("live") / "model", "small", device="cpu")


def test_every_id_that_the_model_can_sample_is_one_of_its_tokenizer(folder):
    renderer = load_renderer(str(folder), family="chatml")
    last = model.VOCABULARY - 1

    assert model.VOCABULARY == load_network(folder).shape.vocabulary
    assert " w1000" == renderer.decode([1000])
    assert max(renderer.stop_ids) <= last
    assert renderer.decode([last])


def test_tools_say_as_many_tokens_as_they_are_meant_to(folder):
    renderer = load_renderer(str(folder), family="chatml")

    assert 10 * work.WORD_TOKENS == len(renderer.encode("out " * 10))


def test_a_trainer_that_has_computed_begins_as_if_it_had_not(folder):
    network = load_network(folder)
    before = {name: one.clone() for name, one in network.module.named_parameters()}
    found = warmed.trainer(
        network,
        section=TrainerSection(pack_tokens=256),
        objective=ObjectiveSection(),
        optimizer=OptimizerSection(),
        temperature=1.0,
        options={},
    )

    assert 0 == found.version
    assert all(not one.any() for one in found.gradients)
    assert all(one.equal(before[name]) for name, one in network.module.named_parameters())


async def sampled(engine, ask):
    found = [token async for chunk in engine.generate(ask) for token in chunk.ids]
    await engine.close()
    return found


def test_an_engine_that_has_served_samples_as_long_as_it_is_asked_to(folder):
    section = EngineSection(capacity=3, kv_tokens=4096)
    network = load_network(folder)
    engine = warmed.engine(
        network, name="cell-1", section=section, folder=folder, options={"seed": "1"}
    )
    ids = array("i", range(20)).tobytes()
    ask = Ask(id="a", input_ids=ids, sampling=Sampling(max_tokens=17), execution="e")

    assert 17 == len(asyncio.run(sampled(engine, ask)))


def test_what_runs_live_is_among_what_is_simulated():
    named = {name: (schedule, cells) for name, schedule, cells in predict.variants(steps=6)}
    for name in runs.SCHEDULES:
        schedule, cells = named[live_variant(name, 2)]
        streaming = runs.SCHEDULES[name].get("streaming", True)

        assert runs.schedule_of(name, steps=6) | {"streaming": streaming} == schedule
        assert runs.cells_of(name, training=2) == cells


def test_all_placements_have_the_staleness_and_the_cells_of_the_comparison():
    for name, schedule in runs.SCHEDULES.items():
        mean = schedule["extra_dispatch"] + (schedule["steps_per_burst"] - 1) / 2
        cells = runs.cells_of(name, training=1)

        assert runs.STALENESS == mean
        assert runs.CELLS == cells["count"] + len(cells.get("standalone", ()))
        assert 0 == runs.STEPS % schedule["steps_per_burst"]


GIVEN = {
    "schedule": runs.schedule_of("elastic", steps=6),
    "cells": runs.cells_of("elastic", training=4),
    "seed": 5,
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run as the simulator makes it, and how many hours it took."""
    path = tmp_path_factory.mktemp("ran") / "journal"
    scenario = predict.foretold(PLANTED, SCALE, **GIVEN)
    record, events = journaled(scenario, lambda _: None)
    header = header_of(scenario, started_at=0.0)
    write(path, header, events, kinds=EVENTS)
    return Ran(reading=read(path, kinds=EVENTS), wall_s=0.0), record.hours


def test_a_calibration_finds_what_a_run_was_made_with_and_foretells_it(ran):
    journal, hours = ran
    found = predict.calibrated(journal, SCALE, seed=5)

    assert 0.5 == pytest.approx(found.per_execution_s, abs=0.05)
    assert 0.2 == pytest.approx(found.per_call_s, rel=0.05)
    assert 0.015 == pytest.approx(found.per_token_s, rel=0.01)
    assert hours == pytest.approx(run(predict.foretold(found, SCALE, **GIVEN)).hours, rel=0.05)


RESULT = results.RESULTS / "2026-11-16-nvidia-h200-gpu-live.json"
OPENED = LogOpened(
    format=FORMAT,
    execution=ExecutionId("g00000-00"),
    key_hash=b"h" * 32,
    salt=b"s" * 16,
    model="m",
    renderer="r",
    at=1000.0,
)


@pytest.mark.parametrize("name", ["elastic", "async"])
def test_a_journal_says_what_its_result_says(tmp_path, name):
    packed = results.RESULTS / "journals" / f"{RESULT.stem}-{name}-0.gz"
    (tmp_path / "journal").write_bytes(gzip.decompress(packed.read_bytes()))
    ran = Ran(
        reading=read(tmp_path / "journal", kinds=KINDS), wall_s=0.0, used={"controller": Used()}
    )
    path = calls.path_of(tmp_path, "g00000-00")
    path.parent.mkdir()
    fails = [CallFailed(call=CallId(at), at=1000.0 + at, reason="planted") for at in (1, 10_000)]
    log = calls.CallLog(path)
    log.append(OPENED, *fails)
    log.close()
    found = measured.sample(ran, tmp_path)
    (expected,) = json.loads(RESULT.read_text())["samples"][name]
    of_journal = {"seconds", "staleness max", "claims", "trained_tokens", "transitions", "facts"}
    shares = {key for key in expected if key.startswith("share ")}

    assert 1 == found["failed_calls"]
    assert 1 == pytest.approx(sum(found[key] for key in shares))
    for key in shares | of_journal:
        assert expected[key] == pytest.approx(found[key]), key


def test_a_run_that_did_not_end_well_can_be_made_again(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(
        runs, "trained", lambda place, _: found.extend(one.name for one in place.iterdir())
    )
    folder = tmp_path / "elastic-0"
    (folder / "run").mkdir(parents=True)
    machine = runs.Machine(model=tmp_path, device="cpu", kv_tokens=1024, pack_tokens=64, shards=1)

    runs.live(folder, "elastic", machine, SCALE, seed=0, steps=1, training=runs.CELLS)

    assert ["tasks.jsonl"] == found
