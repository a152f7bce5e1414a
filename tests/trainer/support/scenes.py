"""Executions with shared prefixes, and their loss computed row by row as SPEC 8.2 is written."""

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from tests.trainer.support.cases import SIZES, network

from gyre.batching.packing import AdmittedExecution, pack
from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.trainer import Trainer
from gyre.trajectory.selection import Row
from gyre.types.ids import CallId, ExecutionId

OBJECTIVE = LossConfig()
OPTIMIZER = OptimizerConfig(lr=1e-3)
NUM_EXECUTIONS = 9
"""B*N: more than there are executions with rows."""
ADVANTAGES = [1.5, -0.75, 0.5, -1.25, 0.0, 1.0]
DRIFTS = [0.0, 0.0, 0.02, -0.02, 0.0, 0.001]
"""Mean log-ratios: the third and fourth execution are beyond their bounds."""


@dataclass
class Scene:
    """Executions and the network that trains on them."""

    network: object
    executions: list[AdmittedExecution]
    loss: float
    gradients: dict[str, torch.Tensor]
    """By parameter, as computed row by row."""

    def claims(self, executions=None, **changes):
        settings = {"pack_tokens": 64, "sharing": True} | changes
        return pack(self.executions if executions is None else executions, **settings).claims


def a_scene(family="llama", seed=0, **changes):
    made = network(family, **changes)
    rows = [_rows(np.random.default_rng([seed, number])) for number in range(len(ADVANTAGES))]
    literal = _literal(made)
    executions = []
    for number, sequences in enumerate(rows):
        rng = np.random.default_rng([seed, 100 + number])
        executions.append(_admitted(literal, number, sequences, rng))
    loss = literal_loss(literal, executions)
    loss.backward()
    gradients = {name: one.grad for name, one in literal.named_parameters()}
    return Scene(made, executions, loss.item(), gradients)


def a_trainer(scene_or_network, *, optimizer=OPTIMIZER, temperature=1.0, **changes):
    """Of a copy of the network, so that each test has its own weights and sums."""
    held = getattr(scene_or_network, "network", scene_or_network)
    held = Network(copy.deepcopy(held.module))
    settings = {"checkpoint": False, "logits_tokens": 7} | changes
    return Trainer(
        held,
        section=TrainerConfig(**settings),
        objective=OBJECTIVE,
        optimizer=optimizer,
        temperature=temperature,
    )


def literal_loss(module, executions):
    """SPEC 8.2, an execution after the other, a row after the other."""
    loss = torch.zeros((), dtype=torch.float64)
    for one in executions:
        ours, theirs = [], []
        for row in one.rows:
            ours.append(path_logprobs(module, row))
            theirs.append(torch.from_numpy(row.logprobs).double())
        if not ours or one.advantage == 0:
            continue
        ours, theirs = torch.cat(ours), torch.cat(theirs)
        ratio = (ours - theirs).detach().exp()
        mean = float((ours - theirs).detach().mean())
        if one.advantage > 0 and mean > math.log(1.005):
            continue
        if one.advantage < 0 and mean < math.log(0.995):
            continue
        tokens = (-ratio.clamp(max=5) * one.advantage * ours).clamp(max=100)
        loss = loss + tokens.mean() / NUM_EXECUTIONS
    return loss


def path_logprobs(module, row):
    """Of a row's targets, by the library's own forward pass over its path alone."""
    ids = torch.from_numpy(row.ids.astype(np.int64))
    logits = module(input_ids=ids[None], use_cache=False).logits[0]
    at = torch.from_numpy(row.targets.astype(np.int64))
    return torch.log_softmax(logits, dim=-1)[at - 1, ids[at]]


def _literal(made):
    module = copy.deepcopy(made.module)
    module.set_attn_implementation("sdpa")
    return module


def _rows(rng):
    """Token sequences of one execution with their target positions; branches leave the first."""
    prompt = np.arange(1, 6)
    length = int(rng.integers(6, 20))
    main = np.concatenate([prompt, rng.integers(0, SIZES["vocab_size"], length)])
    # Something read, something said, again and again.
    said = [at for at in range(len(prompt), len(main)) if (at // 3) % 2]
    rows = [(main, said)]
    for _ in range(int(rng.integers(0, 4))):
        cut = int(rng.integers(len(prompt), len(main)))
        new = rng.integers(0, SIZES["vocab_size"], int(rng.integers(1, 8)))
        if cut < len(main) and new[0] == main[cut]:
            new[0] = (new[0] + 1) % SIZES["vocab_size"]
        rows.append((np.concatenate([main[:cut], new]), list(range(cut, cut + len(new)))))
    return rows


def _admitted(module, number, sequences, rng):
    rows = []
    for leaf, (ids, targets) in enumerate(sequences, 1):
        one = Row(
            leaf=CallId(leaf),
            role="main",
            ids=ids.astype(np.int32),
            targets=np.array(targets, np.int32),
            logprobs=np.zeros(len(targets), np.float32),
            versions=None,
        )
        with torch.no_grad():
            now = path_logprobs(module, one).numpy()
        noise = rng.normal(0, 0.1, len(targets))
        noise -= noise.mean() if len(noise) else 0.0
        one.logprobs[:] = now - DRIFTS[number] + noise
        rows.append(one)
    return AdmittedExecution(
        execution=ExecutionId(f"e{number}"), advantage=ADVANTAGES[number], rows=tuple(rows)
    )
