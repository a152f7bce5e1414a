"""Greedy tokens are those of transformers: its `generate`, and its own continuous batching."""

import pytest
import torch
from tests.inference.engine.test_engine import FAMILIES, prompt
from tests.inference.support.slow_engine import ask, loop, network, run
from transformers import ContinuousBatchingConfig, GenerationConfig

TOKENS = 24
LENGTHS = (1, 7, 33, 90)


def theirs(kind):
    """The same weights in a model that attends as transformers does by itself."""
    module = network(kind).module
    module.set_attn_implementation("eager")
    module.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=TOKENS, pad_token_id=0, eos_token_id=None
    )
    return module


@pytest.mark.parametrize("kind", FAMILIES)
def test_greedy_tokens_and_scores_are_those_of_generate(kind):
    module = theirs(kind)
    asks = [ask(prompt(n), f"a{n}", temperature=0, max_tokens=TOKENS) for n in LENGTHS]
    sampled = [ask(prompt(n), f"b{n}", max_tokens=TOKENS) for n in LENGTHS]
    answers = run(loop(network(kind)), asks + sampled)

    for length in LENGTHS:
        ids = torch.tensor([prompt(length)])
        found = module.generate(ids, attention_mask=torch.ones_like(ids))
        assert found[0, length:].tolist() == answers[f"a{length}"].ids
        said = answers[f"b{length}"]
        whole = torch.tensor([prompt(length) + said.ids])
        with torch.no_grad():
            scores = torch.log_softmax(module(whole).logits[0].float(), dim=-1)
        wanted = [float(scores[length - 1 + n, token]) for n, token in enumerate(said.ids)]
        assert wanted == pytest.approx(said.logprobs, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_greedy_tokens_are_those_of_continuous_batching(kind):
    module = theirs(kind)
    module.set_attn_implementation("sdpa")
    config = ContinuousBatchingConfig(num_blocks=64, page_size=16, max_batch_tokens=64)
    # No id ends a reply: theirs wants a number where ours wants nothing.
    module.generation_config.eos_token_id = -1
    found = module.generate_batch(
        [prompt(length) for length in LENGTHS],
        generation_config=module.generation_config,
        continuous_batching_config=config,
    )
    asks = [ask(prompt(n), f"a{n}", temperature=0, max_tokens=TOKENS) for n in LENGTHS]
    answers = run(loop(network(kind)), asks)

    by_prompt = {len(one.prompt_ids): one.generated_tokens for one in found.values()}
    assert {n: answers[f"a{n}"].ids for n in LENGTHS} == by_prompt
