"""Log-probabilities of given outputs by a plain forward pass in fp32; JSON in, JSON out.

Runs in an engine's environment, which has torch and transformers.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM


def shaped(logits: torch.Tensor, temperature: float, top_p: float, top_k: int | None):
    """The logits as a sampler uses them: scaled, and what may not be drawn ruled out."""
    logits = logits / temperature if temperature > 0 else logits
    if top_k is not None:
        least = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1)
        out = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
        out[..., -1] = False
        logits = logits.masked_fill(out.scatter(-1, order, out), -torch.inf)
    return logits


@torch.inference_mode()
def main() -> None:
    asked = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32)
    answers = []
    for row in asked["rows"]:
        prompt, output = row["prompt"], row["output"]
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        settings = (row["temperature"], row["top_p"], row["top_k"])
        logprobs = shaped(logits, *settings).log_softmax(dim=-1)
        answers.append(logprobs[torch.arange(len(output)), torch.tensor(output)].tolist())
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
