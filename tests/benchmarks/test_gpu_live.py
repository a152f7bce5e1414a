"""The live comparison on a GPU: its work, its model, and what the simulator foretells of it."""

import asyncio
import dataclasses
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from array import array

import pytest
from benchmarks.gpu.live import measured, model, pilot, predict, runs, warmed, work
from benchmarks.gpu.live.campaign import SETTINGS, Campaign
from benchmarks.gpu.live.compare import compared, live_variant
from benchmarks.gpu.live.predict import Calibration
from benchmarks.gpu.live.work import Execution, Scale
from benchmarks.gpu.moves import mps
from benchmarks.live import running
from benchmarks.live.running import Ran, Used
from benchmarks.peers import results
from tests.waiting import PATIENCE_S

from gyre.batching.task_sampler import TaskSampler
from gyre.config.sections import EngineConfig, LossConfig, OptimizerConfig, TrainerConfig
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import read, write
from gyre.model.loader import load_network
from gyre.renderers.registry import load_renderer
from gyre.scheduler.replay import EVENTS
from gyre.simulator.from_journal import header_of
from gyre.simulator.request import journaled
from gyre.simulator.workload import HOUR_S, NL2REPO_122B, WorkloadDraws
from gyre.simulator.world import run
from gyre.storage import call_log
from gyre.types.call_records import FORMAT, CallFailed, LogOpened
from gyre.types.errors import ConfigError
from gyre.types.ids import CallId, ExecutionId
from gyre.types.run_events import RunEnded
from gyre.types.sampling import GenerateRequest, SamplingParams

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
    per_token_s=0.015,
)
SCALE = Scale(mean_s=19.3, tokens_per_s=100.0, turn_s=2.0, told_fraction=0.5)
"""An hour of the paper is ten seconds."""
SIZE = runs.Size(batch=8, group=4, capacity=18)


def test_executions_take_what_the_simulator_draws_for_them():
    found = work.work(SCALE, groups=5, members=4, seed=7)
    drawn = [WorkloadDraws(NL2REPO_122B, seed=7, group_size=4).group(number) for number in range(5)]
    for group, expected in zip(found, drawn, strict=True):
        for one, execution in zip(group, expected, strict=True):
            hours = execution.course(NL2REPO_122B.deadlines).rollout_s / HOUR_S
            evaluation_s = min(work.FOREVER_S, 10 * execution.evaluation_s / HOUR_S)

            assert 10 * hours == pytest.approx(one.tool_s + one.num_tokens / 100.0, rel=0.02)
            assert evaluation_s == pytest.approx(one.evaluation_s)


def test_the_nth_query_of_a_run_is_the_nth_group(tmp_path):
    groups = work.work(SCALE, groups=12, members=2, seed=3)
    tasks = work.write_tasks(tmp_path / "tasks.jsonl", groups, seed=3).read_text().splitlines()
    queries = TaskSampler(12, seed=3)
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
        section=TrainerConfig(pack_tokens=256),
        objective=LossConfig(),
        optimizer=OptimizerConfig(),
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
    section = EngineConfig(capacity=3, kv_tokens=4096)
    network = load_network(folder)
    engine = warmed.engine(
        network, name="cell-1", section=section, folder=folder, options={"seed": "1"}
    )
    ids = array("i", range(20)).tobytes()
    ask = GenerateRequest(
        id="a", input_ids=ids, sampling=SamplingParams(max_tokens=17), execution="e"
    )

    assert 17 == len(asyncio.run(sampled(engine, ask)))


def test_what_runs_live_is_among_what_is_simulated():
    named = {name: (schedule, cells) for name, schedule, cells in predict.variants(SIZE, steps=6)}
    for name in runs.SCHEDULES:
        schedule, cells = named[live_variant(name, 2)]
        streaming = runs.SCHEDULES[name].get("streaming", True)

        assert runs.schedule_of(name, SIZE, steps=6) | {"streaming": streaming} == schedule
        assert runs.cells_of(name, SIZE, training=2) == cells


def test_all_placements_have_the_staleness_and_the_cells_of_the_comparison():
    for name, schedule in runs.SCHEDULES.items():
        mean = schedule["extra_dispatch"] + (schedule["steps_per_burst"] - 1) / 2
        cells = runs.cells_of(name, SIZE, training=1)

        assert runs.STALENESS == mean
        assert runs.CELLS == cells["count"] + len(cells.get("standalone", ()))
        assert 0 == runs.STEPS % schedule["steps_per_burst"]


GIVEN = {
    "schedule": runs.schedule_of("elastic", SIZE, steps=6),
    "cells": runs.cells_of("elastic", SIZE, training=4),
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
    assert 0.015 == pytest.approx(found.per_token_s, rel=0.01)
    assert hours == pytest.approx(run(predict.foretold(found, SCALE, **GIVEN)).hours, rel=0.05)


NAMED = re.compile(r"(.+-gpu-live(?:-\d+)?)-([a-z-]+)-(\d+)")
JOURNALS = sorted((results.RESULTS / "journals").glob("*-gpu-live*.gz"))
OPENED = LogOpened(
    format=FORMAT,
    execution=ExecutionId("g00000-00"),
    key_hash=b"h" * 32,
    salt=b"s" * 16,
    model="m",
    renderer="r",
    at=1000.0,
)


@pytest.mark.parametrize("packed", JOURNALS, ids=lambda path: path.stem)
def test_a_journal_says_what_its_result_says(tmp_path, packed):
    stem, name, seed = NAMED.fullmatch(packed.stem).groups()
    (tmp_path / "journal").write_bytes(gzip.decompress(packed.read_bytes()))
    ran = Ran(
        reading=read(tmp_path / "journal", kinds=JOURNAL_EVENTS),
        wall_s=0.0,
        used={"controller": Used()},
    )
    path = call_log.path_of(tmp_path, "g00000-00")
    path.parent.mkdir()
    fails = [CallFailed(call=CallId(at), at=1000.0 + at, reason="planted") for at in (1, 10_000)]
    log = call_log.CallLog(path)
    log.append(OPENED, *fails)
    log.close()
    found = measured.sample(ran, tmp_path)
    samples = json.loads((results.RESULTS / f"{stem}.json").read_text())["samples"][name]
    (expected,) = (one for one in samples if one["seed"] == int(seed))
    of_journal = {"seconds", "staleness max", "claims", "trained_tokens", "transitions", "facts"}
    shares = {key for key in expected if key.startswith("share ")}

    assert 1 == found["failed_calls"]
    assert 1 == pytest.approx(sum(found[key] for key in shares))
    for key in shares | of_journal:
        assert expected[key] == pytest.approx(found[key]), key


def test_a_run_that_did_not_end_well_can_be_made_again(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(
        runs, "trained", lambda place, _, **__: found.extend(one.name for one in place.iterdir())
    )
    folder = tmp_path / "elastic-0"
    (folder / "run").mkdir(parents=True)
    machine = runs.Machine(model=tmp_path, device="cpu", **SETTINGS["cpu"].machine)

    runs.live(
        folder,
        "elastic",
        machine,
        SIZE,
        SCALE,
        seed=0,
        steps=1,
        training=4,
        within_s=1.0,
    )

    assert ["tasks.jsonl"] == found


PACE = {"sampled_tokens": 3000.0, "calls_s": 10.0, "trained_tokens": 80_000.0, "claims_s": 2.0}


def test_executions_have_as_much_to_do_as_fills_their_seconds_and_gives_training_its_part():
    found = pilot.scaled(SCALE, PACE, capacity=36, context=100_000)
    evaluations_h = NL2REPO_122B.evaluations.mean_h
    held_s = SCALE.mean_s * (work.MEAN_H + evaluations_h) / work.MEAN_H
    sampled = (1 - work.TOOL_SHARE) * SCALE.mean_s * 300.0
    trained_s = sampled * (1 + found.told_fraction) / 40_000.0

    assert 300.0 == found.tokens_per_s
    assert pilot.training_share() == pytest.approx(trained_s / (held_s / 36))
    assert (SCALE.mean_s, SCALE.turn_s) == (found.mean_s, found.turn_s)


def test_a_group_of_the_paper_is_trained_in_less_than_half_the_time_that_it_fills_a_cell():
    assert 0.46 == pytest.approx(pilot.training_share(), abs=0.01)


def test_the_longest_execution_fits_into_the_context():
    found = pilot.scaled(SCALE, PACE, capacity=1, context=16_384)
    groups = work.work(found, groups=200, members=4, seed=0)
    most = max(
        sum(turn["tokens"] + work.WORD_TOKENS * turn["tool_words"] for turn in one.turns)
        for group in groups
        for one in group
    )

    assert 0.85 * 16_384 < most < 16_384


class Scripted(Campaign):
    """Runs that take what they are told to; one that is told nothing fails."""

    def __init__(self, place, seconds, *, scale=None):
        place.mkdir(exist_ok=True)
        super().__init__(place, "cpu", steps=6, longest_s=1.0, scale=scale or {})
        self.asked = []
        self._seconds = seconds

    def _pilot(self):
        return self._kept.add(PACE, "pilot")

    def measure(self, name, seed, *, training=4):
        self.asked.append((name, seed))
        if (name, seed) in self._seconds:
            self._kept.add({"seconds": self._seconds[name, seed]}, name, seed)
            if name == "elastic" and self.calibration is None:
                self._kept.add(dataclasses.asdict(PLANTED), "calibration")


def test_a_run_that_fails_costs_no_other(tmp_path):
    every = [(name, seed) for seed in range(2) for name in runs.SCHEDULES]
    seconds = {one: 10.0 for one in every if one not in {("elastic", 0), ("async", 1)}}
    campaign = Scripted(tmp_path, seconds)
    found = compared(campaign, 2, may_begin=lambda: True)
    told = {(name, one["seed"]) for name, samples in found.samples.items() for one in samples}

    assert set(seconds) == told
    assert set(every) == set(campaign.asked)


def test_a_second_call_measures_only_what_the_first_had_no_time_for(tmp_path):
    every = {(name, seed): 10.0 for seed in range(2) for name in runs.SCHEDULES}
    first = Scripted(tmp_path, every)
    compared(first, 2, may_begin=lambda: len(first.asked) < 4)
    second = Scripted(tmp_path, every)
    found = compared(second, 2, may_begin=lambda: True)

    assert not set(first.asked) & set(second.asked)
    assert len(every) == len(first.asked) + len(second.asked)
    assert dict.fromkeys(runs.SCHEDULES, 2) == {
        name: len(samples) for name, samples in found.samples.items()
    }


def test_a_gpu_that_cannot_be_shared_is_no_reason_to_fail(tmp_path, monkeypatch):
    program = tmp_path / mps.PROGRAM
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(mps, "START_S", 0.2)
    with mps.together() as are_together:
        assert not are_together
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_a_run_that_takes_too_long_is_stopped_and_fails(tmp_path, monkeypatch):
    asleep = "import signal, time; signal.signal(signal.SIGTERM, {}); print(flush=True); "
    ends = []
    for handler in ("lambda *_: exit(0)", "signal.SIG_IGN"):
        monkeypatch.setattr(running, "STOP_S", PATIENCE_S if "exit" in handler else 0.2)
        command = [sys.executable, "-c", asleep.format(handler) + "time.sleep(600)"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline()
            ends.append((running.ended(process, tmp_path, 0.1), process.returncode))

    assert [(running.STOPPED, 0), (running.STOPPED, -signal.SIGKILL)] == ends


def test_a_pilot_runs_once_and_only_for_what_is_not_given(tmp_path):
    given = {"tokens_per_s": 5.0, "told_fraction": 2.0}
    first, told = Scripted(tmp_path / "a", {}), Scripted(tmp_path / "b", {}, scale=given)

    assert 300.0 == first.scale.tokens_per_s
    assert first.scale == Scripted(tmp_path / "a", {}).scale
    assert PACE == first.pilot
    assert (5.0, 2.0) == (told.scale.tokens_per_s, told.scale.told_fraction)
    assert None is told.pilot


def test_runs_of_two_scales_are_not_compared(tmp_path):
    assert 4.0 == Scripted(tmp_path, {}, scale={"mean_s": 4.0}).scale.mean_s
    with pytest.raises(ConfigError, match="mean_s"):
        _ = Scripted(tmp_path, {}, scale={"mean_s": 5.0}).scale


def test_a_run_is_over_as_soon_as_its_journal_says_so_and_its_processes_end_later(tmp_path):
    header = header_of(predict.foretold(PLANTED, SCALE, **GIVEN), started_at=0.0)
    write(tmp_path / "journal", header, [(1.0, RunEnded(reason="finished"))], kinds=JOURNAL_EVENTS)
    with subprocess.Popen(["sleep", "90"]) as process:
        assert 0 == running.over(process, tmp_path, 60.0)
        assert None is process.poll()
        process.kill()


def test_a_run_that_ends_before_its_journal_says_so_has_its_own_status(tmp_path):
    with subprocess.Popen(["sh", "-c", "exit 3"]) as process:
        assert 3 == running.over(process, tmp_path, 60.0)
