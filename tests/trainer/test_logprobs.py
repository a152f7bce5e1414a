"""Chunked log-probabilities, against log_softmax over all logits."""

import pytest
import torch

from gyre.trainer.logprobs import logprobs

TOKENS, TARGETS, VOCABULARY, HIDDEN = 9, 14, 23, 6


def inputs(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(VOCABULARY, HIDDEN, generator=generator, dtype=torch.float64)
    predictors = torch.randint(TOKENS, (TARGETS,), generator=generator)
    labels = torch.randint(VOCABULARY, (TARGETS,), generator=generator)
    hidden, head = (one.to(dtype).requires_grad_() for one in (hidden, head))
    return hidden, head, predictors, labels


def plain(hidden, head, predictors, labels, temperature=1.0):
    every = torch.log_softmax(hidden @ head.t() / temperature, dim=-1)
    return every[predictors, labels]


def outcome(compute, given, weights):
    hidden, head, predictors, labels = given
    hidden, head = (one.detach().clone().requires_grad_() for one in (hidden, head))
    found = compute(hidden, head, predictors, labels)
    found.backward(weights.to(found.dtype))
    return [found.detach(), hidden.grad, head.grad]


def weights(seed=3):
    return torch.randn(TARGETS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 4, TARGETS, 1000])
def test_values_and_gradients_are_those_of_full_logits(chunk, temperature):
    def ours(*given):
        return logprobs(*given, chunk_targets=chunk, temperature=temperature)

    given = inputs()
    expected = outcome(lambda *all_: plain(*all_, temperature), given, weights())
    for one, two in zip(expected, outcome(ours, given, weights()), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-13)


def test_gradients_are_derivatives():
    hidden, head, predictors, labels = inputs()

    assert torch.autograd.gradcheck(
        lambda one, two: logprobs(one, two, predictors, labels, chunk_targets=5), (hidden, head)
    )


def test_several_labels_after_one_predictor_each_have_their_own():
    """L06: their gradients sum at the predictor."""
    hidden, head, _, _ = inputs()
    predictors, labels = torch.tensor([2, 2, 2, 5]), torch.tensor([7, 8, 7, 7])

    given = hidden, head, predictors, labels
    ours = outcome(lambda *all_: logprobs(*all_, chunk_targets=2), given, weights()[:4])
    expected = outcome(plain, given, weights()[:4])

    for one, two in zip(expected, ours, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-13)
    assert 2 == int(ours[1].abs().sum(dim=1).count_nonzero())


def test_targets_without_gradient_give_none():
    given = inputs()
    some = weights()
    some[::2] = 0.0
    _, of_hidden, of_head = outcome(
        lambda *all_: logprobs(*all_, chunk_targets=3), given, torch.zeros(TARGETS)
    )

    assert 0 == of_hidden.count_nonzero()
    assert 0 == of_head.count_nonzero()
    for one, two in zip(
        outcome(plain, given, some),
        outcome(lambda *all_: logprobs(*all_, chunk_targets=3), given, some),
        strict=True,
    ):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-13)


def test_narrow_inputs_have_wide_logits():
    """In bf16 alone a logit of 20 is off by up to 0.06."""
    given = inputs(torch.bfloat16)
    found, of_hidden, of_head = outcome(
        lambda *all_: logprobs(*all_, chunk_targets=4), given, weights()
    )
    exact = outcome(plain, [given[0].double(), given[1].double(), *given[2:]], weights())

    assert (torch.float32, torch.bfloat16, torch.bfloat16) == (
        found.dtype,
        of_hidden.dtype,
        of_head.dtype,
    )
    torch.testing.assert_close(found.double(), exact[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_head.double(), exact[2], rtol=2**-7, atol=2**-7)


def test_no_targets_are_no_values():
    hidden, head, _, _ = inputs()
    none = torch.tensor([], dtype=torch.int64)
    found = logprobs(hidden, head, none, none, chunk_targets=4)
    found.backward(torch.zeros(0, dtype=torch.float64))

    assert (0,) == found.shape
    assert 0 == head.grad.count_nonzero()


def test_the_logits_of_a_chunk_are_the_most_that_exists():
    """Tensors as large as all logits are never made, forward or backward."""
    hidden, head, predictors, labels = inputs()
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        found = logprobs(hidden, head, predictors, labels, chunk_targets=2)
        found.backward(weights())

    assert largest <= max(2 * VOCABULARY, VOCABULARY * HIDDEN) < TARGETS * VOCABULARY
