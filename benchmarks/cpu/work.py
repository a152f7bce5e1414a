"""What both engines are asked: prompts of random ids, replies of a fixed length."""

import random

NUM_PROMPT, NUM_OUTPUT = 128, 128
SIZES = (8, 32)
THREADS = 2


def prompts(count: int, run: int) -> list[list[int]]:
    """Prompts that share no beginning, other ones in each run."""
    rng = random.Random(f"{count}/{run}")
    return [[rng.randrange(1000, 40_000) for _ in range(NUM_PROMPT)] for _ in range(count)]
