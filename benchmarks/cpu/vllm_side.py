"""vLLM's side of cpu-generate, run by vLLM's own interpreter: one JSON line a run."""

import json
import sys
import time

from benchmarks.cpu.work import NUM_OUTPUT, NUM_PROMPT, SIZES, prompts


def main() -> None:
    from vllm import LLM, SamplingParams

    model, runs = sys.argv[1], int(sys.argv[2])
    engine = LLM(
        model=model,
        dtype="bfloat16",
        enforce_eager=True,
        block_size=32,
        max_model_len=NUM_PROMPT + NUM_OUTPUT + 16,
        enable_prefix_caching=False,
    )
    how = SamplingParams(temperature=1.0, max_tokens=NUM_OUTPUT, ignore_eos=True, logprobs=0)
    for count in SIZES:
        for run in range(runs + 1):
            asked = [{"prompt_token_ids": ids} for ids in prompts(count, run)]
            began = time.perf_counter()
            found = engine.generate(asked, how, use_tqdm=False)
            seconds = time.perf_counter() - began
            tokens = sum(len(one.outputs[0].token_ids) for one in found)
            if run:
                line = {"count": count, "tokens": tokens, "seconds": seconds}
                print("measured " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
