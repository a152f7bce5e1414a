"""Tokens per second: the embedded engine beside transformers' generate and continuous batching."""

import gc
from array import array
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.gpu.clock import ceilings, timed
from benchmarks.gpu.networks import qwen3
from transformers import GenerationConfig

from gyre.config.sections import EngineConfig
from gyre.inference.engine.engine import EngineCore
from gyre.model.network import Network
from gyre.types.sampling import GenerateRequest, SamplingParams

NUM_REQUESTS, NUM_PROMPT, NUM_OUTPUT = 256, 256, 256
SETTINGS = {
    "model": "Qwen3-0.6B's size, random weights, bf16",
    "requests": NUM_REQUESTS,
    "prompt_tokens": NUM_PROMPT,
    "output_tokens": NUM_OUTPUT,
}


def prompts(seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, 150_000, (NUM_REQUESTS, NUM_PROMPT), generator=generator)
    return found.tolist()  # type: ignore[no-any-return]


def measure(runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sample per contestant and run."""
    found = ceilings()
    yield "device", found
    yield from _engine(runs, found["copy_bytes_per_s"])
    gc.collect()
    torch.cuda.empty_cache()
    yield from _generate()
    yield from _continuous()


def _sample(num_tokens: int, seconds: float) -> dict[str, Any]:
    return {"tokens": num_tokens, "seconds": seconds, "tokens_per_s": num_tokens / seconds}


def _engine(runs: int, bytes_per_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
    network = Network(qwen3())
    section = EngineConfig(
        capacity=NUM_REQUESTS, kv_tokens=NUM_REQUESTS * 640, prefill_tokens=16_384
    )
    loop = EngineCore(network, section, model="qwen3")
    shape = network.shape
    for run in range(runs + 1):
        tokens, taken = timed(lambda run=run: _drain(loop, run))
        if run == 0:
            # Compiles layers and captures graphs.
            yield "gyre-first", {"seconds": taken.seconds}
            continue
        sample = _sample(tokens, taken.seconds)
        # What must be read for each decoding pass: all weights once, and every call's keys.
        keys = NUM_REQUESTS * sum(range(NUM_PROMPT, NUM_PROMPT + NUM_OUTPUT))
        bytes_read = 2 * (shape.parameters * NUM_OUTPUT + shape.kv_values_per_token * keys)
        floor_s = bytes_read / bytes_per_s
        yield "gyre", sample | {"floor_s": floor_s, "peak_bytes": taken.peak_bytes}


def _drain(loop: EngineCore, run: int) -> int:
    for number, ids in enumerate(prompts(run)):
        loop.submit(
            GenerateRequest(
                id=f"{run}-{number}",
                input_ids=array("i", ids).tobytes(),
                sampling=SamplingParams(max_tokens=NUM_OUTPUT),
                execution=str(number),
            )
        )
    tokens = 0
    while loop.has_calls:
        tokens += len(loop.step())
    assert tokens == NUM_REQUESTS * NUM_OUTPUT
    return tokens


def _generate() -> Iterator[tuple[str, dict[str, Any]]]:
    model: Any = qwen3()
    ids = torch.tensor(prompts(1), device="cuda")

    def generate(count: int) -> Any:
        return model.generate(
            ids, max_new_tokens=count, min_new_tokens=count, do_sample=True, pad_token_id=0
        )

    generate(4)
    found, taken = timed(lambda: generate(NUM_OUTPUT))
    assert found.shape[1] == NUM_PROMPT + NUM_OUTPUT
    yield "transformers generate", _sample(NUM_REQUESTS * NUM_OUTPUT, taken.seconds)


def _continuous() -> Iterator[tuple[str, dict[str, Any]]]:
    model: Any = qwen3()

    def generate(ids: list[list[int]], count: int) -> Any:
        settings = GenerationConfig(
            max_new_tokens=count, do_sample=True, eos_token_id=-1, pad_token_id=0
        )
        return model.generate_batch(inputs=ids, generation_config=settings)

    found, taken = timed(lambda: generate(prompts(1), NUM_OUTPUT))
    tokens = sum(len(one.generated_tokens) for one in found.values())
    yield "transformers continuous batching", _sample(tokens, taken.seconds)
