"""The objective against SPEC 8.2 written out target by target, on random trees, with gradients."""

from math import exp

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyre.batching.packing import AdmittedExecution, pack
from gyre.config.sections import LossConfig
from gyre.trainer.loss import GRPO, GSPO, add_scores, log_ratio_sums, loss_and_gradient, total
from gyre.trajectory.selection import Row
from gyre.types.ids import CallId, ExecutionId

GYRE = LossConfig()
KINDS = {"gyre": GYRE, "grpo": GRPO, "gspo": GSPO}
VOCABULARY = 3
NUM_EXECUTIONS = 6


class Toy:
    """A policy that is a table: for each path of tokens, logits of the next."""

    def __init__(self, rows, rng):
        ends = [tuple(one.ids[:end]) for one in rows for end in range(1, len(one.ids) + 1)]
        self.places = {path: place for place, path in enumerate(dict.fromkeys(ends))}
        values = rng.normal(scale=2.0, size=(len(self.places) + 1, VOCABULARY))
        self.logits = torch.tensor(values, dtype=torch.float64, requires_grad=True)

    def logprob(self, path, label):
        row = self.logits[self.places[tuple(path)]]
        return row[label] - torch.logsumexp(row, dim=0)

    def packed(self, one):
        """Log-probabilities of a pack's targets; a token's path is what it sees."""
        paths = [tuple(one.ids[k] for k in range(q + 1) if q < one.tout[k]) for q in one.predictors]
        states = self.logits[[self.places[path] for path in paths]]
        labels = torch.from_numpy(one.labels.astype(np.int64))
        return torch.log_softmax(states, dim=1)[torch.arange(len(labels)), labels]


def batch_of(seed, *, noise, scale):
    """Some executions of one group, some with nothing to train, and the policy they now meet."""
    rng = np.random.default_rng(seed)
    rows = [_row(rng, leaf) for leaf in range(rng.integers(1, 8))]
    toy = Toy(rows, rng)
    owners = rng.integers(0, NUM_EXECUTIONS, size=len(rows))
    chosen = [0.0, scale, -scale, scale * rng.normal()]
    batch = []
    for number in range(NUM_EXECUTIONS):
        shift = rng.normal(scale=noise)
        own = [one for one, owner in zip(rows, owners, strict=True) if owner == number]
        batch.append(
            AdmittedExecution(
                execution=ExecutionId(f"execution-{number}"),
                advantage=float(chosen[rng.integers(len(chosen))]),
                rows=tuple(_sampled(toy, one, shift, noise, rng) for one in own),
            )
        )
    return batch, toy


def _row(rng, leaf):
    ids = rng.integers(0, VOCABULARY, size=rng.integers(2, 8)).astype(np.int32)
    marked = rng.random(len(ids) - 1) < 0.7
    targets = (1 + np.flatnonzero(marked)).astype(np.int32)
    logprobs = np.zeros(len(targets), dtype=np.float32)
    return Row(
        leaf=CallId(leaf), role="main", ids=ids, targets=targets, logprobs=logprobs, versions=None
    )


def _sampled(toy, one, shift, noise, rng):
    now = [float(toy.logprob(one.ids[:at], one.ids[at]).detach()) for at in one.targets]
    then = np.array(now) - shift - rng.normal(scale=noise / 4, size=len(now))
    return Row(
        leaf=one.leaf,
        role=one.role,
        ids=one.ids,
        targets=one.targets,
        logprobs=then.astype(np.float32),
        versions=None,
    )


def literal_execution(kind, advantage, targets):
    """The loss of one sequence, from pairs of log-probability now and when sampled."""
    ratios = [exp(now.item() - then) for now, then in targets]
    sequence = exp(sum(now.item() - then for now, then in targets) / len(targets))
    losses = []
    if kind == "gyre":
        kept = 1.0
        if (advantage > 0 and sequence > 1.005) or (advantage < 0 and sequence < 0.995):
            kept = 0.0
        for (now, _), ratio in zip(targets, ratios, strict=True):
            loss = -kept * min(ratio, 5.0) * advantage * now
            losses.append(loss if loss.item() <= 100 else 0 * now + 100.0)
    if kind == "grpo":
        for now, then in targets:
            ratio = torch.exp(now - then)
            bounded = torch.clamp(ratio, 0.8, 1.2)
            losses.append(-torch.minimum(ratio * advantage, bounded * advantage))
    if kind == "gspo":
        ratio = torch.exp(sum(now - then for now, then in targets) / len(targets))
        bounded = torch.clamp(ratio, 1 - 3e-4, 1 + 4e-4)
        return -torch.minimum(ratio * advantage, bounded * advantage)
    return sum(losses) / len(losses)


def literal(kind, batch, toy, *, by_trajectory=False):
    """The loss of a batch as a number that can be differentiated."""
    loss = 0 * toy.logits.sum()
    for one in batch:
        sequences = [[each] for each in one.rows] if by_trajectory else [one.rows]
        for rows in sequences:
            targets = [
                (toy.logprob(each.ids[:at], each.ids[at]), float(then))
                for each in rows
                for at, then in zip(each.targets, each.logprobs, strict=True)
            ]
            if targets:
                loss = loss + literal_execution(kind, one.advantage, targets)
    return loss / NUM_EXECUTIONS


def owned(one):
    return torch.from_numpy(one.behaviour), torch.from_numpy(one.shares)


def score(claim, toy):
    return add_scores(
        [log_ratio_sums(toy.packed(one), *owned(one), claim.shares) for one in claim.packs]
    )


def trained(packing, toy, section):
    """Loss and gradient as a trainer finds them: all packs of a claim, then each backward."""
    toy.logits.grad = None
    loss = 0.0
    for claim in packing.claims:
        scores = score(claim, toy)
        for one in claim.packs:
            logprobs = toy.packed(one)
            weighed = loss_and_gradient(
                logprobs,
                *owned(one),
                shares=claim.shares,
                scores=scores,
                num_executions=NUM_EXECUTIONS,
                section=section,
            )
            logprobs.backward(weighed.gradient)
            loss += weighed.loss
    gradient = toy.logits.grad
    return loss, torch.zeros_like(toy.logits) if gradient is None else gradient


def assert_equal(expected, found):
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(
            torch.as_tensor(other, dtype=torch.float64),
            torch.as_tensor(one, dtype=torch.float64),
            rtol=1e-12,
            atol=1e-13,
        )


BATCHES = {
    "seed": st.integers(0, 10_000),
    "noise": st.sampled_from([0.0, 0.002, 0.1, 2.0]),
    "scale": st.sampled_from([0.7, 60.0]),
}


@given(
    kind=st.sampled_from(sorted(KINDS)),
    sharing=st.booleans(),
    by_trajectory=st.booleans(),
    pack_tokens=st.integers(1, 30),
    **BATCHES,
)
def test_loss_and_gradient_are_the_literal_ones(
    kind, sharing, by_trajectory, pack_tokens, seed, noise, scale
):
    """L01, L03, L06, L08: as rows or as trees, in whatever packs, among executions with nothing."""
    batch, toy = batch_of(seed, noise=noise, scale=scale)
    expected = literal(kind, batch, toy, by_trajectory=by_trajectory)
    (gradient,) = torch.autograd.grad(expected, toy.logits)
    packing = pack(batch, pack_tokens=pack_tokens, sharing=sharing, by_trajectory=by_trajectory)

    assert_equal((expected, gradient), trained(packing, toy, KINDS[kind]))


@given(order=st.randoms(use_true_random=False), **BATCHES)
def test_any_split_and_order_gives_the_same_ratio(order, seed, noise, scale):
    """L03: exactly, for any order in a pack or of packs; to rounding, for any split."""
    batch, toy = batch_of(seed, noise=noise, scale=scale)
    claims = pack(batch, pack_tokens=1000, sharing=True).claims
    for claim in claims:
        (one,) = claim.packs
        logprobs, (behaviour, owners) = toy.packed(one), owned(one)
        mixed = order.sample(range(one.num_targets), one.num_targets)
        cut = order.randint(0, one.num_targets)
        parts = [
            log_ratio_sums(logprobs[each], behaviour[each], owners[each], claim.shares)
            for each in (mixed[:cut], mixed[cut:])
        ]
        whole = log_ratio_sums(logprobs, behaviour, owners, claim.shares)

        assert whole == log_ratio_sums(
            logprobs[mixed], behaviour[mixed], owners[mixed], claim.shares
        )
        assert add_scores(parts) == add_scores(parts[::-1])
        for once, split in zip(whole, add_scores(parts), strict=True):
            assert once.count == split.count
            assert once.sum_log_ratio == pytest.approx(split.sum_log_ratio, rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_it_does_not_matter_which_row_carries_a_shared_target(kind):
    """L02: same L_i, s_i, loss and gradients; the prompt is 0, then 1 and 2 are shared."""
    rng = np.random.default_rng(3)
    left, right = [0, 1, 2, 2, 0], [0, 1, 2, 1]
    forms = [
        ((left, [1, 2, 3, 4]), (right, [3])),
        ((left, [3, 4]), (right, [1, 2, 3])),
        ((left, [1, 3, 4]), (right, [2, 3])),
    ]
    behaviour = {(0, 1): -0.9, (0, 1, 2): -1.2, (*left[:4],): -1.0, (*left,): -0.4, (*right,): -2.0}
    toy = None
    found = []
    for form in forms:
        rows = [
            Row(
                leaf=CallId(at),
                role="main",
                ids=np.array(ids, dtype=np.int32),
                targets=np.array(targets, dtype=np.int32),
                logprobs=np.array([behaviour[(*ids[: t + 1],)] for t in targets], np.float32),
                versions=None,
            )
            for at, (ids, targets) in enumerate(form)
        ]
        toy = toy or Toy(rows, rng)
        batch = [AdmittedExecution(execution=ExecutionId("a"), advantage=1.5, rows=tuple(rows))]
        for sharing in (True, False):
            packing = pack(batch, pack_tokens=4, sharing=sharing)
            assert [5] == [share.num_targets for share in packing.claims[0].shares]
            found.append(trained(packing, toy, KINDS[kind]))

    assert found[0][1].any()
    for one in found[1:]:
        assert_equal(found[0], one)


def test_random_batches_reach_every_case():
    """The literal comparison is of little worth unless clips and caps happen in it."""
    seen = []
    for seed in range(40):
        batch, toy = batch_of(seed, noise=[0.002, 0.1, 2.0][seed % 3], scale=60.0)
        for claim in pack(batch, pack_tokens=30, sharing=True).claims:
            scores = score(claim, toy)
            for one in claim.packs:
                weighed = loss_and_gradient(
                    toy.packed(one),
                    *owned(one),
                    shares=claim.shares,
                    scores=scores,
                    num_executions=NUM_EXECUTIONS,
                    section=GYRE,
                )
                seen.append(weighed.measures)
    found = total(seen)

    assert 0 < found.num_capped < found.num_targets
    assert 0 < found.num_raised_clipped < found.num_raised
    assert 0 < found.num_lowered_clipped < found.num_lowered
    assert found.num_targets == found.num_raised + found.num_lowered
