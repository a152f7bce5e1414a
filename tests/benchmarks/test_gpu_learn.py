"""The tasks, the agent and the runs of benchmarks/gpu/learn, without a GPU."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from benchmarks.gpu.learn import agent, eager, tasks
from benchmarks.gpu.learn.measure import told
from benchmarks.gpu.learn.runs import (
    BUDGETS,
    HELD_OUT,
    ON_A_CPU,
    TRAINED,
    Sizes,
    sample,
    tables,
    written,
)
from benchmarks.gpu.step import row
from tests.benchmarks.support.letters_script import LETTERS, SEED, commands

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.run_dir import read_run
from gyre.journal.journal import Header, write
from gyre.model import attention
from gyre.model.attention import attention_for
from gyre.model.attention_kernels import TileAttention, TreeAttention
from gyre.model.loader import load_network
from gyre.model.network import Attend
from gyre.model.packed_batch import PackedBatch
from gyre.model.registry import model_folder
from gyre.storage import call_log
from gyre.tasks.registry import open_tasks
from gyre.testing.processes import EngineProcess, StandaloneProxy
from gyre.testing.tokenizer import write_tokenizer
from gyre.trainer import logprobs
from gyre.trainer.trainer import Trainer
from gyre.trajectory.selection import generator, select_trajectories
from gyre.trajectory.tree import grow
from gyre.types.ids import ExecutionId
from gyre.types.run_events import ClaimTrained, EvaluationRound, GroupPacked, StepMade
from gyre.types.training import Measures

HERE = Path(__file__).parent
AGENT = Path(agent.__file__)
MEASURES = Measures(
    num_targets=4,
    num_capped=0,
    num_raised=2,
    num_raised_clipped=0,
    num_lowered=2,
    num_lowered_clipped=0,
    sum_ratio=4.0,
    max_gap=0.0,
)


def judged(workspace: Path, argv: tuple[str, ...]) -> float:
    """What a task's judge says of a workspace."""
    results = workspace.parent / "results"
    results.mkdir(exist_ok=True)
    variables = {"GYRE_EVALUATION": str(tasks.HERE / "judge"), "GYRE_RESULTS": str(results)}
    subprocess.run(argv, check=True, cwd=workspace, env={**os.environ, **variables})
    return float((results / "reward.txt").read_text())


def begun(folder: Path) -> Path:
    """A workspace as a task gives it."""
    return Path(shutil.copytree(tasks.HERE / "workspace", folder / "workspace"))


def rounds(seed: str, count: int = 4) -> list[tasks.Task]:
    return tasks.rounds(seed, str(count), "12", "3")


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_a_job_counts_when_its_command_was_carried_out_and_not_before(
    tmp_path: Path, kind: str
) -> None:
    job, workspace = tasks.job(kind, "lamp", "desk", "amber"), begun(tmp_path)
    judge = ("sh", "-c", '. "$GYRE_EVALUATION/judge.sh"', "judge", job.states)

    untouched = judged(workspace, judge)
    subprocess.run(["sh", "-c", job.command], check=True, cwd=workspace)

    assert (0.0, 1.0) == (untouched, judged(workspace, judge))
    assert agent.ALLOWED.fullmatch(job.command)


def test_all_jobs_of_a_round_can_be_done_in_one_workspace(tmp_path: Path) -> None:
    workspace, (task, *_) = begun(tmp_path), rounds("one")

    for job in tasks.jobs_of(Random("one/letters"), 12):
        subprocess.run(["sh", "-c", job.command], check=True, cwd=workspace)

    assert 1.0 == judged(workspace, task.evaluation.argv)


def test_tasks_follow_from_their_seed_and_held_out_ones_are_others() -> None:
    trained, held_out = rounds(TRAINED, 64), rounds(HELD_OUT, 64)

    assert trained == rounds(TRAINED, 64)
    assert set() == {one.instruction for one in trained} & {one.instruction for one in held_out}
    assert 12 == len(trained[0].instruction.splitlines())


@pytest.mark.parametrize(
    "command",
    [
        *("rm ../lamp.txt", "rm /etc/passwd", "rm -rf .", "echo a > ../b", "rm lamp.txt; ls"),
        *(
            "cp lamp.txt $HOME",
            "mv lamp.txt ..",
            "echo `id` > a",
            "mkdir a b\nrm c",
            "cat lamp.txt",
        ),
    ],
)
def test_no_command_reaches_beyond_the_folder(command: str) -> None:
    assert agent.REFUSED == agent.carried_out(command)


def test_a_clerk_delegates_sums_up_and_goes_on_in_a_new_context(tmp_path: Path) -> None:
    workspace = begun(tmp_path)
    (task,) = tasks.rounds(SEED, "1", str(LETTERS), "6")
    tokenizer = write_tokenizer(tmp_path / "model") / "tokenizer.json"
    with (
        EngineProcess(
            "sglang",
            script=f"{HERE / 'support' / 'letters_script.py'}:right",
            tokenizer=tokenizer,
            log=tmp_path / "asks.jsonl",
        ) as engine,
        StandaloneProxy(
            tmp_path / "run",
            model=tmp_path / "model",
            engines=[engine.address],
            options=("--family", "qwen3"),
        ) as proxy,
    ):
        opened = proxy.open("one")
        where = {"OPENAI_BASE_URL": f"{opened.url}/v1", "OPENAI_API_KEY": opened.key}
        command = [sys.executable, "-I", "-S", str(AGENT), "700", "1", task.instruction]
        subprocess.run(command, check=True, cwd=workspace, env={**os.environ, **where})
        proxy.close("one")

    tree = grow(call_log.read(call_log.path_of(tmp_path / "run", ExecutionId("one"))).records)
    roles = Counter(leaf.role for leaf in tree.leaves())
    deletes = sum(asked.startswith("delete") for asked in commands())

    assert 1.0 == judged(workspace, task.evaluation.argv)
    assert LETTERS == roles["sub-agent"]
    assert 1 <= roles["main-summary"] == roles["main"] - 1
    assert LETTERS * 2 + deletes + roles["main-summary"] == len(tree.calls)
    assert [min(budget or sum(roles.values()), sum(roles.values())) for budget in (1, 5, None)] == [
        len(
            list(
                select_trajectories(tree, generator(0, ExecutionId("one")), max_trajectories=budget)
            )
        )
        for budget in (1, 5, None)
    ]


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize("where", [Sizes(), ON_A_CPU], ids=["gpu", "cpu"])
def test_every_budget_is_a_run_that_can_be_started(tmp_path: Path, name: str, where: Sizes) -> None:
    sizes = replace(where, tasks=3, held_out=2)
    file = written(tmp_path / "run.toml", tables(tmp_path / "run", name, sizes, seed=0, steps=20))

    run = read_run(file)

    assert run.config.evaluation.tasks is not None
    assert (3, 2) == tuple(
        len(open_tasks(one)) for one in (run.config.tasks, run.config.evaluation.tasks)
    )
    assert BUDGETS[name] == run.config.draw.max_trajectories


def test_a_trainer_that_compiles_nothing_has_its_attention_in_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if blocks were always sooner; a trainer beside it still has them."""
    monkeypatch.setattr(attention, "TILE_SPEED", 0.0)
    monkeypatch.setattr(logprobs, "attention_for", noted := Noted())
    given: dict[str, Any] = {
        "section": TrainerConfig(),
        "objective": LossConfig(),
        "optimizer": OptimizerConfig(),
        "temperature": 0.7,
    }
    plain = Trainer(load_network(model_folder("tiny")), **given)
    in_tiles = eager.trainer(load_network(model_folder("tiny")), options={}, **given)

    claim = row(512, num_tokens=512, vocabulary=700)
    for trainer in (plain, in_tiles, plain):
        trainer.train(claim, num_executions=1)
    in_tiles.score(claim)

    assert [TreeAttention, TileAttention, TreeAttention, TileAttention] == noted.chosen


class Noted:
    """What a GPU would compute with, where a CPU does."""

    def __init__(self) -> None:
        self.chosen: list[type] = []

    def __call__(self, packed: PackedBatch, dtype: torch.dtype) -> Attend:
        self.chosen.append(type(attention.cuda_attention(packed, torch.bfloat16)))
        return attention_for(packed, dtype)


def test_a_sample_says_step_by_step_what_the_journal_says(tmp_path: Path) -> None:
    header = Header(run="letters", seed=3, started_at=0.0, shape={})
    write(tmp_path / "journal", header, facts_of_two_steps(), kinds=JOURNAL_EVENTS)

    found = sample(tmp_path, seed=3)

    assert [5.0, 9.0] == found["made_at_s"]
    assert [0.25, 0.75] == found["scores"]
    assert [2.0, 1.0] == found["gradient_norms"]
    assert [1.5, 0.0] == found["forward_backward_s"]
    assert [3, 0] == found["executions"]
    assert [7, 0] == found["trajectories"]
    assert [0] == [one["version"] for one in found["held_out"]]


def test_a_run_that_came_to_nothing_is_told_all_the_same(tmp_path: Path) -> None:
    header = Header(run="letters", seed=3, started_at=0.0, shape={})
    unscored = EvaluationRound(version=0, num_tasks=2, num_valid=0, mean=None, standard_error=None)
    write(tmp_path / "journal", header, [(1.0, unscored)], kinds=JOURNAL_EVENTS)

    assert "J=5: 0 steps, no pace; held out none; " == told("J=5", sample(tmp_path, seed=3))


def facts_of_two_steps() -> list[tuple[float, object]]:
    def made(step: int, reward: float, norm: float) -> StepMade:
        return StepMade(
            step=step,
            loss=0.0,
            reward=reward,
            gradient_norm=norm,
            is_clipped=False,
            claims={0: 1},
            reduce_s=0.0,
            step_s=0.1,
            reduced_bytes=0,
        )

    def trained(claim: int, executions: int, seconds: float) -> ClaimTrained:
        return ClaimTrained(
            step=0,
            claim=claim,
            cell=0,
            num_executions=executions,
            num_tokens=10,
            loss=0.0,
            seconds=seconds,
            measures=MEASURES,
        )

    packed = GroupPacked(
        group=0,
        step=0,
        num_claims=2,
        num_trajectories=7,
        num_tokens=20,
        num_targets=8,
        row_tokens=30,
    )
    held_out = EvaluationRound(version=0, num_tasks=2, num_valid=2, mean=0.5, standard_error=0.1)
    return [
        (1.0, held_out),
        (2.0, packed),
        (3.0, trained(0, 2, 1.0)),
        (4.0, trained(1, 1, 0.5)),
        (5.0, made(0, 0.25, 2.0)),
        (9.0, made(1, 0.75, 1.0)),
    ]
