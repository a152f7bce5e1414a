"""What ranks tell each other arrives as it was, number for number."""

import numpy as np
import pytest
import torch

from gyre.trainer.distributed import pipeline
from gyre.trainer.distributed.pipeline import MicroStep, MicroStepResult
from gyre.trainer.distributed.pipeline_schedule import HeaderKind
from gyre.trainer.loss import Measures
from gyre.types.ids import CallId, ExecutionId
from gyre.types.training import Pack, Score, Share

SCORES = (Score(sum_log_ratio=-0.1, count=2), Score(sum_log_ratio=1e-300, count=2**40))
SHARES = (
    Share(execution=ExecutionId("a"), advantage=1 / 3, num_targets=2),
    Share(execution=ExecutionId("ü"), advantage=-2.5, num_targets=7, trajectory=CallId(3)),
)


def a_micro_step(*, num_tokens=3, num_targets=2, scores=SCORES, shares=SHARES):
    tokens, targets = np.arange(num_tokens), np.arange(num_targets)
    return MicroStep(
        pack=Pack(
            ids=tokens.astype(np.int32) + 1,
            positions=tokens.astype(np.int32) + 2,
            tout=tokens.astype(np.int32) + 3,
            predictors=targets.astype(np.int32) + 4,
            labels=targets.astype(np.int32) + 5,
            shares=targets.astype(np.int32),
            behaviour=targets.astype(np.float32) - 0.3,
        ),
        shares=shares,
        num_executions=48,
        scores=scores,
    )


def same_arrays(one, other):
    names = Pack.__dataclass_fields__
    return all(
        getattr(one, name).dtype == getattr(other, name).dtype
        and np.array_equal(getattr(one, name), getattr(other, name))
        for name in names
    )


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (a_micro_step(), HeaderKind.RUN),
        (a_micro_step(scores=None), HeaderKind.SCORE),
        (a_micro_step(num_targets=0), HeaderKind.RUN),
        (a_micro_step(scores=(), shares=(), num_targets=0), HeaderKind.RUN),
    ],
)
def test_a_micro_step_arrives_as_it_was(given, kind):
    header, payload = pipeline.header(given), pipeline.payload(given)
    found = pipeline.work_from(header, payload)

    assert kind == pipeline.kind_of(header) == given.kind
    assert pipeline.NUM_HEADER == len(header)
    assert pipeline.num_bytes(header) == len(payload)
    assert same_arrays(given.pack, found.pack)
    assert (given.shares, given.scores, 48) == (found.shares, found.scores, found.num_executions)


@pytest.mark.parametrize("kind", [HeaderKind.PAUSE, HeaderKind.CLOSE])
def test_a_sign_without_work_has_the_same_length(kind):
    header = pipeline.header(kind)

    assert pipeline.NUM_HEADER == len(header)
    assert kind == pipeline.kind_of(header)


@pytest.mark.parametrize(
    ("loss", "scores", "num_targets", "max_gap"),
    [(-0.25, SCORES, 2, 0.125), (None, None, 2, 0.0), (0.0, SCORES, 0, None)],
)
def test_a_result_arrives_as_it_was(loss, scores, num_targets, max_gap):
    work = a_micro_step(scores=scores)
    measures = Measures(
        num_targets=num_targets,
        num_capped=1,
        num_raised=2,
        num_raised_clipped=3,
        num_lowered=4,
        num_lowered_clipped=5,
        sum_ratio=0.1 + 0.2,
        max_gap=max_gap,
    )
    result = MicroStepResult(work=work, scores=SCORES, loss=loss, measures=measures)
    told = pipeline.report(result, work)

    assert pipeline.num_report(work) == len(told)
    assert 0 == pipeline.num_failure(told)
    assert result == pipeline.result_from(told, work)


def test_a_failure_arrives_in_words():
    work = a_micro_step()
    told = pipeline.report("execution ü: no number", work)
    text = pipeline.text_of("execution ü: no number")

    assert pipeline.num_report(work) == len(told)
    assert len(text) == pipeline.num_failure(told)
    assert torch.uint8 == text.dtype
    assert "execution ü: no number" == pipeline.failure_from(text)
