"""How much the work of executions is, chosen so that a run is the paper's on a smaller scale.

A short run before the others says what engines and trainers do in a second here. By that
executions sample as many tokens as it takes to last as long as they are meant to, and tools tell
them as much as it takes for training to have its part of the work: the paper's rollouts keep all
cells busy for about twice as long as training what comes of them does, and where training is less
than that, no placement has much to gain by hiding it.
"""

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.gpu.live.work import MEAN_H, TOOL_SHARE, Scale

from gyre.config.presets import NL2REPO
from gyre.simulator.paper import GROUPS_PER_NODE_HOUR
from gyre.simulator.workload import NL2REPO_122B

FILLED = 0.9
"""Of a context, by the longest execution."""


def training_share() -> float:
    """Seconds of a cell that trains, for each second of a full one that serves, in the paper.

    Its executions as they are published, and the pace of training that its hours were fitted by.
    """
    slots = NL2REPO.cell_capacity / NL2REPO.nodes_per_cell
    held_h = NL2REPO.executions_per_group * (MEAN_H + NL2REPO_122B.evaluations.mean_h)
    return slots / (GROUPS_PER_NODE_HOUR * held_h)


def scaled(scale: Scale, pilot: Mapping[str, float], *, capacity: int, context: int) -> Scale:
    """Of the same seconds, with as many tokens as fill them on the machine of the pilot.

    `capacity` is the number of seats of a cell, `context` that of tokens the model can read.
    """
    found = replace(scale, tokens_per_s=pilot["sampled_tokens"] / pilot["calls_s"])
    sampled = (1 - TOOL_SHARE) * found.mean_s * found.tokens_per_s
    held_s = found.mean_s * (1 + NL2REPO_122B.evaluations.mean_h / MEAN_H)
    training_s = training_share() * held_s / capacity
    trained = training_s * pilot["trained_tokens"] / pilot["claims_s"]
    longest = sampled * NL2REPO_122B.deadlines.harness_h / MEAN_H
    told = min(trained / sampled, FILLED * context / longest) - 1
    return replace(found, told_fraction=max(0.0, told))
