"""The slow, obvious engine: no cache, one ask at a time, every token from the whole text again."""

import math
from array import array
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch

from gyre.config.sections import EngineConfig
from gyre.inference.engine.engine import EngineCore
from gyre.inference.engine.request import RequestFailed
from gyre.inference.engine.sampler import seed_of
from gyre.model.hf_config import describe
from gyre.model.loader import new_network
from gyre.types.sampling import GenerateRequest, SamplingParams

VOCABULARY = 61
CONTEXT = 160
SHARPNESS = 12.0
"""New weights give nearly equal logits; times this, some tokens are likely and most are not."""


def network(kind="qwen3", *, dtype=torch.float32, seed=0, context=CONTEXT):
    """A small random network of the family whose next token depends on what came before."""
    config = {
        "model_type": kind,
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": context,
        "tie_word_embeddings": kind != "llama",
    }
    made = new_network(describe(config, where="test"), seed=seed, dtype=dtype)
    with torch.no_grad():
        for name, one in made.module.named_parameters():
            if one.dim() > 1:
                one.mul_(SHARPNESS)
            elif name.endswith("bias"):
                one.copy_(torch.linspace(-1, 1, len(one)))
    return made


def weights(of):
    """A copy of a network's weights by name."""
    return {name: one.detach().clone() for name, one in of.module.named_parameters()}


def section(**changes):
    return replace(
        EngineConfig(capacity=8, kv_tokens=1024, prefill_tokens=64, block_tokens=4), **changes
    )


def loop(of, *, decode=None, version=0, seed=0, make_forward=None, **changes):
    """A loop over the network with room for little."""
    how = {} if make_forward is None else {"make_forward": make_forward}
    return EngineCore(
        of, section(**changes), model="small", decode=decode, version=version, seed=seed, **how
    )


def ask(ids, name="a", **sampling):
    return GenerateRequest(
        id=name,
        input_ids=array("i", ids).tobytes(),
        sampling=SamplingParams(**{"max_tokens": 12, "seed": 5} | sampling),
        execution="e",
    )


@dataclass
class Told:
    """All that was said about one ask."""

    ids: list
    logprobs: list
    versions: list
    finish: str | None = None
    echoes: list | None = None

    def take(self, chunk):
        assert self.finish is None, "a chunk after the last"
        assert len(chunk.ids) == len(chunk.logprobs)
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.version] * len(chunk.ids)
        self.finish = chunk.finish
        if chunk.prompt_ids is not None:
            self.echoes = [*(self.echoes or []), chunk.prompt_ids]


def told():
    return Told([], [], [])


def run(engine, asks=(), answers=None, *, steps=None):
    """Submits the asks and steps until all are over, or as often as said; answers by id."""
    answers = {} if answers is None else answers
    for one in asks:
        engine.submit(one)
        answers[one.id] = told()
    while engine.has_calls and steps != 0:
        reports = engine.step()
        for report in reports:
            if isinstance(report, RequestFailed):
                raise report.error
            answers[report.id].take(report.chunk)
        steps = None if steps is None else steps - 1
    return answers


def naive_attention(layer, query, key, value, scale):
    """Every token over itself and all before it, head by head."""
    heads, tokens = query.shape[1:3]
    group = heads // key.shape[1]
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    out = []
    for head in range(heads):
        scores = query[0, head] @ key[0, head // group].T * scale
        scores = scores.masked_fill(~seen, -torch.inf)
        out.append(torch.softmax(scores, dim=-1) @ value[0, head // group])
    return torch.stack(out, dim=1)[None]


@torch.inference_mode()
def logits_after(of, ids):
    """Logits of the next token after the ids."""
    states = of.hidden(torch.tensor(ids), torch.arange(len(ids)), naive_attention)
    return (of.head @ states[-1]).tolist()


def distribution(logits, sampling):
    """Probability of every id that can be drawn; the definition, word for word."""
    if sampling.temperature == 0:
        return {logits.index(max(logits)): 1.0}
    highest = max(logits)
    weights = {
        token: math.exp((one - highest) / sampling.temperature) for token, one in enumerate(logits)
    }
    order = sorted(weights, key=lambda token: -weights[token])[: sampling.top_k]
    left = _normal({token: weights[token] for token in order})
    kept, mass = {}, 0.0
    for token, probability in left.items():
        if mass >= sampling.top_p and sampling.top_p < 1:
            break
        kept[token] = probability
        mass += probability
    return _normal(kept)


def _normal(weights):
    total = math.fsum(weights.values())
    return {token: one / total for token, one in weights.items()}


def drawn(probabilities, number):
    """The id at which the running sum passes the number."""
    mass = 0.0
    for token in sorted(probabilities):
        mass += probabilities[token]
        if mass > number:
            return token
    return token


def uniform(seed):
    """The number in [0, 1) that a seed stands for; the definition, word for word."""
    digest = blake2b(seed.to_bytes(16, "little", signed=True), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def expected(of, asked, *, version=0, engine_seed=0, context=CONTEXT):
    """What an engine has to say about the ask."""
    sampling = asked.sampling
    ids = array("i", asked.input_ids).tolist()
    seed = seed_of(engine_seed, asked.id) if sampling.seed is None else sampling.seed
    answer = told()
    answer.echoes = [list(ids)]
    most = min(sampling.max_tokens, context - len(ids))
    while answer.finish is None:
        probabilities = distribution(logits_after(of, ids), sampling)
        token = drawn(probabilities, uniform(seed + len(answer.ids)))
        ids.append(token)
        answer.ids.append(token)
        answer.logprobs.append(math.log(probabilities[token]))
        answer.versions.append(version)
        if token in sampling.stop_ids:
            answer.finish = "stop"
        elif len(answer.ids) >= most:
            answer.finish = "length"
    return answer


def expected_with_kept_kv(old, new, asked, num_old):
    """Ids and log-probabilities when the first `num_old` come from the old weights.

    Tokens go one by one; each one's keys and values are of the weights that computed it.
    """
    prompt = array("i", asked.input_ids).tolist()
    held = [([], []) for _ in range(old.shape.layers)]

    def attend(layer, query, key, value, scale):
        keys, values = held[layer]
        keys.append(key[0])
        values.append(value[0])
        group = query.shape[1] // key.shape[1]
        all_keys = torch.cat(keys, dim=1).repeat_interleave(group, dim=0)
        all_values = torch.cat(values, dim=1).repeat_interleave(group, dim=0)
        scores = query[0] @ all_keys.transpose(1, 2) * scale
        return (torch.softmax(scores, dim=-1) @ all_values).transpose(0, 1)[None]

    ids, logprobs = [], []
    with torch.inference_mode():
        while len(ids) < asked.sampling.max_tokens:
            of = old if len(ids) < num_old else new
            position = sum(one.shape[1] for one in held[0][0])
            token = (prompt + ids)[position]
            state = of.hidden(torch.tensor([token]), torch.tensor([position]), attend)[0]
            if position + 1 < len(prompt) + len(ids):
                continue
            probabilities = distribution((of.head @ state).tolist(), asked.sampling)
            ids.append(drawn(probabilities, uniform(asked.sampling.seed + len(ids))))
            logprobs.append(math.log(probabilities[ids[-1]]))
    return ids, logprobs


def assert_same(wanted, found, tolerance=1e-5):
    assert wanted.ids == found.ids
    assert wanted.versions == found.versions
    assert wanted.finish == found.finish
    assert wanted.echoes == found.echoes
    assert (
        max(
            (abs(one - two) for one, two in zip(wanted.logprobs, found.logprobs, strict=True)),
            default=0.0,
        )
        < tolerance
    )
