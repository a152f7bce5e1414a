"""What a cell does in a second; by several at once the scale of the runs was chosen.

    python -m benchmarks.gpu.live.pace MODEL DEVICE KV_TOKENS PACK_TOKENS

It prints one line of JSON; four at once under MPS show what cells do beside each other.
"""

import json
import sys
import time
from array import array
from pathlib import Path

import numpy as np
import torch
from benchmarks.gpu.live import warmed

from gyre.engine.loop import Loop
from gyre.model.load import load_network
from gyre.train.cell import LocalTrainer
from gyre.words.samples import Ask, Sampling
from gyre.words.sections import EngineSection, ObjectiveSection, OptimizerSection, TrainerSection

CALLS = (1, 4, 8, 18)
OUTPUT_TOKENS = 200
PROMPT_TIMES, CLAIM_TIMES = 1, (1, 2)
"""Prompts and claims are so many packs long."""
CLAIMS = 4


def paces(model: Path, *, device: str, kv_tokens: int, pack_tokens: int) -> dict[str, float]:
    """Tokens per second of each call, by how many there are at once, and of training by length."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    network = load_network(model, device=device, dtype=dtype)
    found = {}
    began = time.monotonic()
    trainer = warmed.trainer(
        network,
        section=TrainerSection(pack_tokens=pack_tokens, checkpoint=False),
        objective=ObjectiveSection(),
        optimizer=OptimizerSection(),
        temperature=1.0,
        options={},
    )
    found["trainer warm after, s"] = time.monotonic() - began
    for times in CLAIM_TIMES:
        tokens = pack_tokens * times
        found[f"trained per s, {tokens} tokens"] = _trained(trainer, tokens)
    trainer.rest()
    began = time.monotonic()
    loop = Loop(network, EngineSection(capacity=max(CALLS), kv_tokens=kv_tokens), model="pace")
    warmed.warm(loop, max(CALLS))
    found["engine warm after, s"] = time.monotonic() - began
    for calls in CALLS:
        found[f"sampled per s and call, {calls} calls"] = _sampled(
            loop, calls, pack_tokens * PROMPT_TIMES
        )
    return found


def _trained(trainer: LocalTrainer, tokens: int) -> float:
    claim = warmed.claim(tokens)
    trainer.train(claim, num_executions=CLAIMS)
    _settle()
    began = time.monotonic()
    for _ in range(CLAIMS):
        trainer.train(claim, num_executions=CLAIMS)
    _settle()
    return CLAIMS * tokens / (time.monotonic() - began)


def _sampled(loop: Loop, calls: int, prompt_tokens: int) -> float:
    rng = np.random.default_rng(calls)
    for number in range(calls):
        ids = rng.integers(0, 700, prompt_tokens, dtype=np.int32).tolist()
        loop.submit(
            Ask(
                id=f"pace-{calls}-{number}",
                input_ids=array("i", ids).tobytes(),
                sampling=Sampling(max_tokens=OUTPUT_TOKENS),
                execution=str(number),
            )
        )
    began = time.monotonic()
    while loop.has_calls:
        loop.step()
    return OUTPUT_TOKENS / (time.monotonic() - began)


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    kv_tokens, pack_tokens = map(int, sys.argv[3:5])
    where = Path(sys.argv[1])
    print(
        json.dumps(paces(where, device=sys.argv[2], kv_tokens=kv_tokens, pack_tokens=pack_tokens))
    )
