"""Gyre's side of cpu-generate: one JSON line a run."""

import json
import sys
import time
from array import array

import torch
from benchmarks.cpu.work import NUM_OUTPUT, NUM_PROMPT, SIZES, THREADS, prompts

from gyre.config.sections import EngineConfig
from gyre.inference.engine.engine import EngineCore
from gyre.model.loader import load_network
from gyre.types.sampling import GenerateRequest, SamplingParams


def main() -> None:
    model, runs = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(THREADS)
    tokens = max(SIZES) * (NUM_PROMPT + NUM_OUTPUT + 16)
    section = EngineConfig(capacity=max(SIZES), kv_tokens=tokens)
    loop = EngineCore(load_network(model, dtype=torch.bfloat16), section, model="smollm2")
    for count in SIZES:
        for run in range(runs + 1):
            began = time.perf_counter()
            found = _generate(loop, count, run)
            seconds = time.perf_counter() - began
            if run:
                line = {"count": count, "tokens": found, "seconds": seconds}
                print("measured " + json.dumps(line), flush=True)


def _generate(loop: EngineCore, count: int, run: int) -> int:
    for number, ids in enumerate(prompts(count, run)):
        loop.submit(
            GenerateRequest(
                id=f"{count}-{run}-{number}",
                input_ids=array("i", ids).tobytes(),
                sampling=SamplingParams(max_tokens=NUM_OUTPUT),
                execution=str(number),
            )
        )
    found = 0
    while loop.has_calls:
        found += len(loop.step())
    return found


if __name__ == "__main__":
    main()
