"""Derives from a run file the specs of its processes: cells, proxy and executions."""

import os
from dataclasses import replace
from pathlib import Path

from gyre.batching.group_packer import GroupPacker
from gyre.cell.spec import CellSpec
from gyre.config.run_config import DeadlinesConfig, RunConfig, SandboxConfig, TasksConfig
from gyre.config.sections import ServerConfig
from gyre.controller.run_dir import RunDir
from gyre.harnesses.program import ContextWindow
from gyre.harnesses.registry import open_harness
from gyre.model.registry import model_folder
from gyre.proxy.spec import ProxySpec
from gyre.rollout.spec import ExecutionSpec
from gyre.storage.files import proxy_address_file
from gyre.tasks.registry import open_tasks as open_source
from gyre.tasks.registry import refuse_unfit
from gyre.types.errors import ConfigError
from gyre.types.ids import ExecutionId, shard_of
from gyre.types.places import TaskSource
from gyre.types.sampling import SamplingParams
from gyre.types.tasks import Command, EvaluationRule, Limits, SandboxSpec, Task


def cell_plan(config: RunConfig, places: RunDir, cell: int) -> CellSpec:
    """Cell `cell` of the run, or beyond the cells a standalone engine."""
    trains = cell < config.cells.count
    total = config.cells.count + len(config.cells.standalone)
    threads = config.cells.threads
    if threads is None and config.cluster.kind != "local":
        threads = max(1, int(config.cluster.cell_cpus) // (config.cells.ranks if trains else 1))
    if threads is None:
        ranks = config.cells.count * config.cells.ranks + len(config.cells.standalone)
        threads = max(1, (os.cpu_count() or 1) // ranks)
    return CellSpec(
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
        timeout_s=config.schedule.group_s,
        engine=config.engine,
        trainer=config.trainer,
        objective=config.objective,
        optimizer=config.optimizer if cell == 0 else None,
        limits=config.limits,
        stages=config.cells.stages if trains else 1,
        shards=config.cells.shards if trains else 1,
        serves_with=config.cells.engine,
        server=config.cells.server or ServerConfig(),
        transport=config.transport,
        trainer_factory=config.cells.trainer,
    )


def proxy_plan(
    config: RunConfig, places: RunDir, *, engines: tuple[str, ...], context_tokens: int
) -> ProxySpec:
    window = min(config.proxy.context_tokens, context_tokens)
    sampling = config.sampling
    return ProxySpec(
        folder=places.run,
        model=str(model_folder(config.model.name)),
        engines=engines,
        family=config.model.family,
        thinking=config.model.thinking,
        sampling=SamplingParams(
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
) -> ExecutionSpec:
    """One execution of a task."""
    harness = harness_for(config)
    shard = shard_of(execution, config.proxy.shards)
    agent_s, overall_s = deadlines_for(config.deadlines, task)
    return ExecutionSpec(
        execution=execution,
        task=replace(
            task,
            evaluation=evaluation_for(config, task, task.evaluation),
            steps=tuple(
                replace(step, evaluation=evaluation_for(config, task, step.evaluation))
                for step in task.steps
            ),
        ),
        url=url,
        harness=harness.argv,
        variables=harness.variables,
        home=harness.home,
        layers=harness.layers,
        agent_s=agent_s,
        overall_s=overall_s,
        counts_placeholders=config.evaluate.placeholder == "zero",
        judge=config.evaluate.judge,
        sandbox=sandbox_for(config.sandbox),
        address_file=str(proxy_address_file(Path(config.run.place).absolute(), shard)),
        facts_url=facts_url,
    )


def harness_for(config: RunConfig) -> Command:
    """How every execution starts its agent program; ConfigError if it is not installed."""
    window = ContextWindow.of(
        context_tokens=config.proxy.context_tokens, reply_tokens=config.sampling.max_tokens
    )
    return open_harness(config.harness, window)


def deadlines_for(allowed: DeadlinesConfig, task: Task) -> tuple[float, float]:
    """The agent's and the overall one: a task may ask for less than its run allows."""
    agent_s, overall_s = allowed.agent_s, allowed.overall_s
    if task.agent_s is not None:
        agent_s = min(agent_s, task.agent_s)
    if task.overall_s is not None:
        overall_s = min(overall_s, task.overall_s)
    if agent_s >= overall_s:
        # Time for one attempt at a score stays behind the agent, or half of all where that is less.
        agent_s = max(overall_s - task.evaluation.attempt_s, overall_s / 2)
    return agent_s, overall_s


def sandbox_for(section: SandboxConfig) -> SandboxSpec:
    """Where every execution runs its programs."""

    def size(megabytes: int | None) -> int | None:
        return None if megabytes is None else megabytes * 2**20

    return SandboxSpec(
        kind=section.kind,
        root=section.root,
        readable=section.readable,
        image=section.image,
        runtime=section.runtime,
        socket=section.socket,
        limits=Limits(
            memory_bytes=size(section.memory_mb),
            processes=section.processes,
            cpus=section.cpus,
            disk_bytes=size(section.disk_mb),
        ),
        require=section.require,
        keep=section.keep,
    )


def evaluation_for(config: RunConfig, task: Task, own: EvaluationRule) -> EvaluationRule:
    """The task's or a step's own, unless the run has one for all."""
    evaluate = config.evaluate
    if own.rubric is not None and evaluate.judge is None:
        message = f"evaluate.judge: missing; expected a table, because task {task.id} has a rubric"
        raise ConfigError(message)
    if evaluate.argv is None or own.rubric is not None:
        return own
    return replace(
        own,
        argv=tuple(evaluate.argv),
        score=evaluate.score,
        attempt_s=evaluate.timeout_s,
        attempts=evaluate.retries + 1,
    )


def packer_for(config: RunConfig, places: RunDir) -> GroupPacker:
    return GroupPacker(
        folder=places.run,
        seed=config.run.seed,
        max_trajectories=config.draw.limit,
        pack_tokens=config.trainer.pack_tokens,
        claim_packs=config.trainer.claim_packs,
        divide_by_std=config.objective.divide_by_std,
        by_trajectory=config.objective.kind != "gyre",
        shuffle_rewards=config.objective.shuffle_rewards,
    )


def open_tasks(section: TasksConfig, *, sandbox: str = "process") -> TaskSource:
    """The tasks that a table of the run file names, all fit for a sandbox of that kind."""
    found = open_source(section)
    refuse_unfit(found, sandbox=sandbox)
    return found
