"""Whole runs in which a process dies or stops every few seconds, beside the same undisturbed."""

import json
import os
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest
from tests.chaos.held import most
from tests.chaos.held_calls import held_tables, write_blows
from tests.chaos.soaking import Soak
from tests.flows.live.followed_run import watched
from tests.flows.live.running import SCHEDULE, tasks_of, write_run

from gyre.controller.executions.group_executions import next_name
from gyre.observability.ledgers import ledgers
from gyre.rollout import facts
from gyre.scheduler.messages import GroupAssigned, StepTaken, StopReason
from gyre.scheduler.replay import EVENTS, replay, shape_of
from gyre.storage import call_log
from gyre.testing.emulated_cell import CHECK, tables
from gyre.types.call_records import CallFailed
from gyre.types.ids import ExecutionId
from gyre.types.outcomes import Ending, Launched, Terminated
from gyre.types.run_events import ExecutionRelaunched, GroupDrawn, RewardGiven, StepMade

pytestmark = pytest.mark.slow

ALL = ("core", "satellite", "engine", "proxy", "supervisor", "controller")
ROOT = Path(__file__).parents[2]
QUICK_TRAINER = "gyre.testing.emulated_cell:trainer?base_s=0.1"
QUIET = {"lease_s": 4.0, "group_s": 8.0}
"""So that what is stopped is noticed while somebody waits."""


def emulated(folder, *, steps, seed, mean_s=0.8, holds=False, **how):
    """A run of emulated cells, struck as `how` says; if it holds calls, they wait for blows."""
    folder.mkdir(exist_ok=True)
    tasks = tasks_of(folder, seed=seed, mean_s=mean_s)
    place = folder / "run"
    schedule = {"schedule": {**SCHEDULE, "rescue_s": 10.0, "steps": steps}}
    if how.get("stop_share") != 0.0:
        # Where nothing is stopped, who is silent for so long is only slow.
        schedule["schedule"] |= QUIET
    cells = {"cells": {"count": 3, "capacity": 5, "standalone": [4]}}
    # No reply is cut short, so that what it must be can be told from the task.
    whole = {"sampling": {"max_tokens": 128}}
    held = {}
    if holds:
        blows = folder / "blows"
        how["struck"] = partial(write_blows, blows)
        held = held_tables(blows, most=how["most"])
        held["cells"]["trainer"] = QUICK_TRAINER
    file = write_run(folder / "run.toml", tables(place, tasks, schedule, cells, whole, held))
    return Soak(file=file, folder=place, seed=seed, **how).run()


def assert_nothing_lost(soaked, *, steps):
    """The promises of SPEC 10 and FAULTS, from the journal and the logs alone."""
    reading = soaked.reading
    assert 0 == soaked.status, soaked.said[-4000:]
    shape = shape_of(reading.header.shape)
    events = reading.facts(EVENTS)
    found = ledgers(reading)

    assert () == found.faults
    assert found.balance
    assert steps * shape.groups_per_batch == found.groups.trained + found.groups.void
    assert 0 == found.groups.void == found.groups.outstanding == found.executions.open
    assert found.executions.dispatched == found.executions.valid + found.executions.excluded
    alone = orphaned(soaked)
    assert {} == {name: why for name, why in excluded(reading).items() if name not in alone}
    assert StopReason.FINISHED is watched(shape, events).stopped
    assert_ages(shape, events, steps)
    assert_one_life_each(soaked)


def assert_ages(shape, events, steps):
    """I3, in integers after every update."""
    scheduler = replay(shape, []).scheduler
    seen = 0
    for now, event in events:
        scheduler.handle(event, now)
        if isinstance(event, StepTaken):
            found = scheduler.staleness.identity(event.step + 1)
            assert found.consumed + found.outstanding == found.survivors + found.lag
            seen += 1
    assert steps == seen


def orphaned(soaked):
    """Executions whose supervisor was killed, and whose harness may have ended with it."""
    return {one.name for one in soaked.blows if one.kind == "supervisor" and one.is_kill}


def excluded(reading):
    """Executions without a reward, and why: the harness of one had left nothing yet."""
    given = reading.facts((RewardGiven,))
    return {one.execution: one.reason for _, one in given if one.score is None}


def assert_one_life_each(soaked):
    """I1, I6: every harness was started once, ended well, and none of its calls was given up."""
    anew = {one.execution for _, one in soaked.reading.facts((ExecutionRelaunched,))}
    for attempt in sorted((soaked.folder / "attempts").iterdir()):
        life = [entry.fact for entry in facts.read(attempt)]
        if next_name(ExecutionId(attempt.name)) in anew:
            # A controller died over its launch: another name has its life.
            assert not any(isinstance(one, Launched | Terminated) for one in life), attempt.name
            continue
        assert 1 >= sum(isinstance(one, Launched) for one in life), attempt.name
        (ended,) = [one for one in life if isinstance(one, Terminated)]
        if attempt.name not in orphaned(soaked):
            assert (Ending.COMPLETED, "exit status 0") == (ended.ending, ended.reason), attempt


def failed_calls(folder):
    return [
        (path.stem, one)
        for path in call_log.logs(folder)
        for one in call_log.read(path).records
        if isinstance(one, CallFailed)
    ]


def rewards(reading):
    """By task and member, whichever group had it when."""
    task_of = {one.group: one.task for _, one in reading.facts((GroupDrawn,))}
    return {(task_of[one.group], one.member): one.score for _, one in reading.facts((RewardGiven,))}


def curve(reading):
    return [one.reward for _, one in reading.facts((StepMade,))]


def assert_struck(soaked, *, least):
    """I6, I10 mean nothing if nothing was going on, and so no blow fell then."""
    assert least <= len(soaked.blows), soaked.blows
    assert all(one.executions and one.calls for one in soaked.blows), soaked.blows


def reply(number, num_words):
    """What an emulated engine says."""
    return " ".join(["step", str(number), *["done"] * (num_words - 2)])


def earned(folder, tasks, found):
    """What the evaluation of each of these tasks says of the replies that its agent must get."""
    scores = {}
    for line in tasks.read_text().splitlines():
        task = json.loads(line)
        for member, turns in enumerate(json.loads(task["instruction"])["members"]):
            if (task["id"], member) in found:
                replies = [reply(number, turn["words"]) for number, turn in enumerate(turns)]
                (folder / "replies.txt").write_text("\n".join([*replies, ""]))
                variables = {**os.environ, "GYRE_RESULTS": str(folder)}
                subprocess.run(CHECK, cwd=folder, env=variables, check=True)
                scores[task["id"], member] = float((folder / "reward.txt").read_text())
    return scores


def test_a_run_whose_processes_die_earns_what_it_must(tmp_path):
    """FAULTS 43, SPEC 10: every group is trained once, with the rewards of an undisturbed run."""
    struck = emulated(
        tmp_path,
        steps=4,
        seed=5,
        mean_s=0.4,
        kinds=ALL,
        every_s=(0.3, 0.8),
        stop_share=0.0,
        most=len(ALL),
        holds=True,
    )
    found = rewards(struck.reading)
    expected = earned(tmp_path, tmp_path / "tasks.jsonl", found)
    task_of = {one.group: one.task for _, one in struck.reading.facts((GroupDrawn,))}
    # By the name that each had last, which is another if it was launched again.
    alone = {
        (task_of[one.group], one.member)
        for _, one in struck.reading.facts((RewardGiven,))
        if one.execution in orphaned(struck)
    }

    assert_struck(struck, least=len(ALL))
    assert set(ALL) == {one.kind for one in struck.blows}
    assert_nothing_lost(struck, steps=4)
    assert 4 * 3 * 4 == len(found)
    assert [] == [one for one in found if found[one] != expected[one] and one not in alone]
    assert by_step(struck.reading) == pytest.approx(curve(struck.reading))


def by_step(reading):
    """Mean of the rewards that the groups of each step were given."""
    step_of = {one.group: one.step for _, one in reading.facts((GroupAssigned,))}
    given = {(one.group, one.member): one.score for _, one in reading.facts((RewardGiven,))}
    valid = [(step_of[group], score) for (group, _), score in given.items() if score is not None]
    return [
        fmean(score for at, score in valid if at == step) for step in sorted(set(step_of.values()))
    ]


@pytest.mark.chaos
def test_a_long_run_holds_no_more_at_its_end_than_at_its_start(tmp_path):
    """FAULTS 43: memory, files, threads and the journal's bytes by step are bounded."""
    steps = 40
    soaked = emulated(
        tmp_path / "long", steps=steps, seed=7, kinds=ALL, every_s=(2.0, 5.0), patience_s=3600.0
    )

    assert_struck(soaked, least=20)
    assert_nothing_lost(soaked, steps=steps)
    for name, samples in soaked.samples.items():
        third = len(samples) // 3
        early, late = most(samples[: 2 * third]), most(samples[2 * third :])
        assert late.memory_bytes < 1.3 * early.memory_bytes + 64 * 2**20, name
        assert late.files < early.files + 64, name
        assert late.threads < early.threads + 16, name
    by_kind = Counter(type(one.event).__name__ for one in soaked.reading.entries)
    assert soaked.reading.sound_bytes / steps < 64 * 1024, by_kind


@pytest.mark.chaos
def test_a_model_learns_as_much_as_undisturbed(tmp_path):
    """The quick start, struck every few seconds: its curve ends among those of quiet seeds."""
    path = max((ROOT / "benchmarks" / "results").glob("*-live-quickstart.json"))
    quiet = [one["rewards"] for one in json.loads(path.read_text())["samples"]["as earned"]]
    place = tmp_path / "run"
    text = (ROOT / "examples" / "quickstart.toml").read_text()
    file = tmp_path / "run.toml"
    file.write_text(
        text.replace('name = "quickstart"\n', f'name = "quickstart"\nfolder = "{place}"\n').replace(
            'path = "examples/', f'path = "{ROOT}/examples/'
        )
    )
    # It has no engine but those of its cells.
    kinds = [kind for kind in ALL if kind != "engine"]
    soaked = Soak(
        file=file, folder=place, seed=1, kinds=kinds, every_s=(2.0, 5.0), patience_s=3600.0
    ).run()
    found = curve(soaked.reading)

    assert_struck(soaked, least=8)
    assert 0 == soaked.status, soaked.said[-4000:]
    assert ledgers(soaked.reading).balance
    assert len(quiet[0]) == len(found)
    spread = max(one[-1] for one in quiet) - min(one[-1] for one in quiet)
    assert min(fmean(one[-3:]) for one in quiet) - max(0.1, spread) < fmean(found[-3:])
