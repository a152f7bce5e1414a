"""Cells of processes or of threads, run to their end within a time limit."""

import json
from concurrent.futures import ThreadPoolExecutor
from math import inf

from safetensors.torch import load_file
from tests.controller.support.forked_cells import fork_server
from tests.trainer.support.cell_rank import main
from tests.waiting import PATIENCE_S


class Said:
    """What the ranks of one cell have said, plan by plan."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size

    def facts(self, plan):
        """Of every rank."""
        paths = [self.folder / f"{plan}-{rank}.json" for rank in range(self.size)]
        return [json.loads(one.read_text()) if one.exists() else None for one in paths]

    def tensors(self, plan):
        """Of every rank."""
        paths = [self.folder / f"{plan}-{rank}.safetensors" for rank in range(self.size)]
        return [load_file(one) if one.exists() else {} for one in paths]


class Threads(Said):
    """A cell whose ranks share a process."""

    def __init__(self, folder, size, plans):
        super().__init__(folder, size)
        with ThreadPoolExecutor(size) as pool:
            list(pool.map(lambda rank: main(rank, size, folder, *plans), range(size)))


class Cell(Said):
    """A cell whose ranks are processes."""

    program = "tests.trainer.support.cell_rank"

    def __init__(self, folder, size, plans):
        super().__init__(folder, size)
        logs = [folder / f"{rank}.log" for rank in range(size)]
        ranks = [
            fork_server(self.program).fork(rank, size, folder, *plans, log=logs[rank])
            for rank in range(size)
        ]
        try:
            ended = [one.wait(PATIENCE_S) for one in ranks]
        finally:
            for one in ranks:
                one.kill()

        assert [0] * size == ended, "\n".join(one.read_text() for one in logs)


def distance(expected, found):
    """The largest difference, relative to the largest value expected."""
    assert expected.shape == found.shape
    scale = expected.abs().max().item()
    # What is no number is as far as can be, because max passes over it.
    return (expected - found).abs().max().nan_to_num(nan=inf).item() / (scale or 1.0)


def worst(expected, found):
    """Over tensors of the same names."""
    assert set(expected) == set(found)
    return max(distance(expected[name].detach(), found[name]) for name in expected)


def parts(whole, names, dims, shard, shards):
    """What a rank holds of a model's tensors; a head that is not listed is the embedding."""
    found = {}
    for name in names:
        value = whole[name if name in whole else "model.embed_tokens.weight"]
        found[name] = value if name not in dims else value.chunk(shards, dims[name])[shard]
    return found
