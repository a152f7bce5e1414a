"""Every key of a run file does something in a run: code beyond the checks reads it, or refuses it.

Where a key is read is written down here and looked up in the sources.
"""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest
from tests.config.support.tables import read, sections

import gyre
from gyre.config.settings import choices_of, plain_parts, settings
from gyre.config.validation import simulator_only

SOURCES = Path(gyre.__file__).parent
NO_RUN = {"config", "simulator", "testing"}
"""Packages whose reading makes no difference to a run."""
SPECS = "controller/process_specs.py"
TASKS = {"tasks/registry.py": "path tests source"}
READ = {
    "run": {
        "observability/terminal/progress.py": "name",
        SPECS: "seed",
        "controller/main.py": "folder=run.place",
    },
    "model": {SPECS: "name dtype device family thinking"},
    "schedule": {
        "scheduler/groups.py": "groups_per_batch steps_per_burst",
        "scheduler/executions.py": "executions_per_group min_valid evaluation_holds_slot "
        "endless_dispatch",
        "scheduler/config.py": "surplus supply_fraction",
        "scheduler/fleet.py": "supply_dwell_s rescue_s",
        "scheduler/scheduler.py": "max_void max_unusable steps",
        "controller/run_dir.py": "depth placement streaming extra_dispatch=schedule.phi "
        "staleness=schedule.phi",
        "controller/components.py": "publish_s join_s lease_s group_s",
    },
    "cells": {
        "controller/run_dir.py": "count capacity standalone",
        "controller/controller.py": "nodes",
        SPECS: "stages shards engine server trainer threads",
    },
    "cells.server": {
        "inference/external/process.py": "python args env",
        "inference/external/registry.py": "start_s weights",
    },
    "cluster": {
        "cluster/registry.py": "kind",
        "controller/cells/processes.py": "cell_nodes",
        "cluster/ray.py": "address namespace cell_cpus cell_gpus cell_resource agents "
        "agents_resource place_s",
    },
    "transport": {"transports/registry.py": "kind protocol devices timeout_s"},
    "tasks": TASKS,
    "evaluation.tasks": TASKS,
    "harness": {"harnesses/registry.py": "kind argv version args env"},
    "sandbox": {
        SPECS: "kind root readable image runtime socket memory_mb processes cpus disk_mb require "
        "keep"
    },
    "evaluate": {SPECS: "argv score timeout_s retries placeholder judge"},
    "evaluate.judge": {
        "rewards/judge.py": "url model calls tokens reply_tokens show_bytes",
        "rollout/environment.py": "key_env",
    },
    "deadlines": {SPECS: "agent_s overall_s"},
    "sampling": {SPECS: "temperature top_p top_k max_tokens"},
    "draw": {SPECS: "max_trajectories=draw.limit"},
    "objective": {
        "trainer/loss.py": "kind ratio_cap loss_cap clip_low=objective.bounds "
        "clip_high=objective.bounds",
        SPECS: "divide_by_std shuffle_rewards",
    },
    "optimizer": {
        "trainer/optimizer.py": "lr beta1 beta2 eps weight_decay",
        "trainer/trainer.py": "max_norm",
    },
    "trainer": {
        "cell/ranks/main.py": "kind",
        SPECS: "pack_tokens claim_packs",
        "trainer/trainer.py": "checkpoint logits_tokens deterministic",
    },
    "engine": {
        "inference/engine/engine.py": "capacity kv_tokens prefill_tokens block_tokens",
        "inference/engine/model_runner.py": "graphs",
    },
    "proxy": {
        "proxy/main.py": "host port alone_s ping_s",
        "proxy/executions.py": "honour_sampling context_tokens media_placeholder",
        SPECS: "shards",
    },
    "router": {
        "proxy/routing/router.py": "capacity hold_s idle_s retry_first_s retry_most_s break_after "
        "probe_s kv_s"
    },
    "limits": {
        "proxy/server.py": "body_bytes messages tools body_s",
        "proxy/executions.py": "calls_per_execution calls_per_minute",
    },
    "evaluation": {"controller/components.py": "every", "controller/controller.py": "slots tasks"},
    "checkpoint": {"controller/cells/checkpointer.py": "every keep optimizers"},
    "trackers": {
        "observability/trackers/registry.py": "project tensorboard=section.kinds "
        "wandb=section.kinds mlflow=section.kinds trackio=section.kinds"
    },
}
"""By table the modules that read keys; of `key=a.property` they read what the table makes of it."""
CHECKED = {"schedule.launch_order", "schedule.overcommit"}
CHECKED |= {"cells.experts", "cells.contexts", "cells.share_devices"}
"""Keys by which a run is refused, so that nothing else need read them."""


def keys():
    for path, section in sections():
        for name, one in settings(section).items():
            # A key of one value says nothing that could be read.
            is_fixed = len(choices_of(one.type)) == len([*plain_parts(one.type)]) == 1
            if not is_fixed and f"{path}.{name}" not in CHECKED:
                yield path, name, section


@cache
def attributes(module):
    tree = ast.parse((SOURCES / module).read_text())
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def readers(path):
    """Of a table by key: the module, and what it reads there."""
    for module, said in READ[path].items():
        for one in said.split():
            name, _, by = one.partition("=")
            yield name, (module, by.rpartition(".")[2] or name)


@pytest.mark.parametrize(("path", "name", "section"), [*keys()], ids=lambda one: str(one)[:40])
def test_a_key_is_read_by_code_of_a_run(path, name, section):
    module, attribute = dict(readers(path))[name]

    assert module.partition("/")[0] not in NO_RUN
    assert attribute in attributes(module)
    if attribute != name:
        made = inspect.getsource(getattr(section, attribute).fget)
        assert re.search(rf"\b{name}\b", made)


def test_no_key_is_written_down_that_is_gone():
    known = {(path, name) for path, name, _ in keys()}

    assert known == {(path, name) for path in READ for name, _ in readers(path)}


@pytest.mark.parametrize("setting", ["schedule.launch_order=longest", "schedule.overcommit=1.25"])
def test_what_only_a_simulation_obeys_is_refused_in_a_run(setting):
    path, _, value = setting.partition("=")
    (line,) = simulator_only(read(setting).config)

    assert line.startswith(f"{path}: expected ")
    assert value in line
    assert [] == list(simulator_only(read().config))
