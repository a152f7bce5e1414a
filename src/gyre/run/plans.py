"""What a run file means for each process of its run: cells, proxy and executions."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from gyre.backends.tasks.folder import FolderTasks
from gyre.backends.tasks.jsonl import JsonlTasks
from gyre.model.known import model_folder
from gyre.rollout.order import Order
from gyre.run.cell_plan import CellPlan
from gyre.run.materialise import Packer
from gyre.run.proxy import ProxyPlan
from gyre.words.errors import ConfigError
from gyre.words.ids import ExecutionId
from gyre.words.places import TaskSource
from gyre.words.run_sections import FolderTasksSection, RunConfig, TasksSection
from gyre.words.samples import Sampling
from gyre.words.tasks import Evaluation, Task

GROUP_S = 60.0
"""How long cells of a group wait for each other before it has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a run keeps what its processes share."""

    run: Path
    share: Path
    """In memory; gone with the run."""

    @property
    def token(self) -> Path:
        return self.run / "admin.token"

    @property
    def weights(self) -> Path:
        return self.run / "weights"

    @property
    def journal(self) -> Path:
        return self.run / "journal"

    @property
    def attempts(self) -> Path:
        """Folders of executions, by name."""
        return self.run / "attempts"

    def plan(self, name: str) -> Path:
        return self.run / "plans" / f"{name}.json"

    def log(self, name: str) -> Path:
        return self.run / "logs" / f"{name}.log"


def cell_plan(config: RunConfig, places: Places, cell: int) -> CellPlan:
    """Cell `cell` of the run, or beyond the cells a standalone engine."""
    trains = cell < config.cells.count
    total = config.cells.count + len(config.cells.standalone)
    threads = config.cells.threads
    if threads is None:
        ranks = config.cells.count * config.cells.ranks + len(config.cells.standalone)
        threads = max(1, (os.cpu_count() or 1) // ranks)
    return CellPlan(
        name=f"cell-{cell}" if trains else f"engine-{cell}",
        cell=cell,
        trains=trains,
        model=config.model.name,
        version=0,
        device=config.model.device,
        dtype=config.model.dtype,
        seed=config.run.seed * total + cell,
        temperature=config.sampling.temperature,
        threads=threads,
        key_file=places.token,
        share=places.share,
        store=places.share / "store",
        timeout_s=GROUP_S,
        engine=config.engine,
        trainer=config.trainer,
        objective=config.objective,
        optimizer=config.optimizer if cell == 0 else None,
        limits=config.limits,
        stages=config.cells.stages if trains else 1,
        shards=config.cells.shards if trains else 1,
        engine_factory=config.cells.engine,
        trainer_factory=config.cells.trainer,
    )


def proxy_plan(
    config: RunConfig, places: Places, *, engines: tuple[str, ...], context_tokens: int
) -> ProxyPlan:
    window = min(config.proxy.context_tokens, context_tokens)
    sampling = config.sampling
    return ProxyPlan(
        folder=places.run,
        model=str(model_folder(config.model.name)),
        engines=engines,
        family=config.model.family,
        thinking=config.model.thinking,
        sampling=Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_tokens,
        ),
        proxy=replace(config.proxy, context_tokens=window),
        router=config.router,
        limits=config.limits,
        open=(),
        engine_key=places.token,
        routed=True,
    )


def order_for(
    config: RunConfig, execution: ExecutionId, task: Task, *, url: str, facts_url: str
) -> Order:
    """One execution of a task."""
    return Order(
        execution=execution,
        task=replace(task, evaluation=evaluation_for(config, task)),
        url=url,
        harness=tuple(config.harness.argv),
        variables=dict(config.harness.env),
        agent_s=config.deadlines.agent_s,
        overall_s=config.deadlines.overall_s,
        counts_placeholders=config.evaluate.placeholder == "zero",
        facts_url=facts_url,
    )


def evaluation_for(config: RunConfig, task: Task) -> Evaluation:
    """The task's own, unless the run has one for all."""
    evaluate = config.evaluate
    if evaluate.argv is None:
        return task.evaluation
    return replace(
        task.evaluation,
        argv=tuple(evaluate.argv),
        score=evaluate.score,
        attempt_s=evaluate.timeout_s,
        attempts=evaluate.retries + 1,
    )


def packer_for(config: RunConfig, places: Places) -> Packer:
    return Packer(
        folder=places.run,
        seed=config.run.seed,
        max_trajectories=config.draw.limit,
        pack_tokens=config.trainer.pack_tokens,
        claim_packs=config.trainer.claim_packs,
        divide_by_std=config.objective.divide_by_std,
        by_trajectory=config.objective.kind != "gyre",
        shuffle_rewards=config.objective.shuffle_rewards,
    )


def open_tasks(section: TasksSection) -> TaskSource:
    """The tasks that a table of the run file names."""
    path = Path(section.path)
    if not path.exists():
        message = f"tasks.path: {path}: expected a file or folder of tasks, found none"
        raise ConfigError(message)
    return FolderTasks(path) if isinstance(section, FolderTasksSection) else JsonlTasks(path)
