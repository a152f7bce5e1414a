"""How cells are laid out over ranks and nodes, held against the model and the machines."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd

from gyre.words.run_sections import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What of a model is dealt out to ranks."""

    layers: int
    heads: int
    kv_heads: int
    columns: int
    """Of the MLP between its two matrices."""
    experts: int = 0


def misfits(config: RunConfig, sizes: Sizes, *, devices: int) -> Iterator[str]:
    """A line for each value that does not fit, with its path and the nearest that would.

    `devices` are the CUDA devices of this machine, which count where cells are started here.
    """
    yield from _by_model(config, sizes)
    yield from _by_nodes(config)
    yield from _by_devices(config, devices)


def _by_model(config: RunConfig, sizes: Sizes) -> Iterator[str]:
    cells = config.cells
    if cells.stages > sizes.layers:
        yield (
            f"cells.stages: expected at most the model's {sizes.layers} layers, found "
            f"{cells.stages}; nearest: {sizes.layers}"
        )
    whole = gcd(sizes.heads, sizes.kv_heads, sizes.columns)
    if whole % cells.shards:
        yield (
            f"cells.shards: expected a divisor of the model's {sizes.heads} attention heads, "
            f"{sizes.kv_heads} key-value heads and {sizes.columns} MLP columns, found "
            f"{cells.shards}; nearest: {_nearest(cells.shards, _divisors(whole))}"
        )
    if cells.experts > 1 and (not sizes.experts or sizes.experts % cells.experts):
        has = f"{sizes.experts} experts" if sizes.experts else "no experts"
        near = _nearest(cells.experts, _divisors(sizes.experts or 1))
        yield (
            f"cells.experts: expected a divisor of the experts of a model that has {has}, found "
            f"{cells.experts}; nearest: {near}"
        )
    if cells.contexts > 1:
        yield (
            f"cells.contexts: expected 1, because every rank sees whole packs, found "
            f"{cells.contexts}; nearest: 1"
        )


def _by_nodes(config: RunConfig) -> Iterator[str]:
    ranks, nodes = config.cells.ranks, config.cluster.cell_nodes
    if config.cluster.kind == "local" and nodes > 1:
        yield (
            f'cluster.cell_nodes: expected 1 where cluster.kind is "local", found {nodes}; '
            "nearest: 1"
        )
    elif ranks % nodes:
        yield (
            f"cluster.cell_nodes: expected a divisor of the {ranks} ranks of a cell, which are "
            f"dealt out evenly, found {nodes}; nearest: {_nearest(nodes, _divisors(ranks))}"
        )


def _by_devices(config: RunConfig, devices: int) -> Iterator[str]:
    asked, ranks = config.model.device, config.cells.ranks
    per_node = -(-ranks // config.cluster.cell_nodes)
    if asked == "cpu":
        return
    if config.cluster.kind == "ray":
        kept = config.cluster.cell_gpus
        # A part of a GPU is one that is shared, by a cell that is one rank there.
        if kept and per_node > max(1.0, kept):
            yield (
                f"cluster.cell_gpus: expected at least {per_node}, one for each rank of a cell on "
                f"a node, found {kept:g}; nearest: {per_node}"
            )
    elif devices == 0 and asked is not None:
        yield f"model.device: expected cpu, found {asked!r} and no CUDA device; nearest: 'cpu'"
    elif devices and ranks > devices:
        yield (
            f"cells.stages and cells.shards: expected at most {devices} ranks of a cell, one for "
            f"each CUDA device, found {ranks}"
        )


def _divisors(whole: int) -> Iterator[int]:
    return (one for one in range(1, whole + 1) if whole % one == 0)


def _nearest(found: int, fitting: Iterable[int]) -> int:
    return min(fitting, key=lambda one: (abs(one - found), one))
