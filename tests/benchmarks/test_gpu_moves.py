"""Moves are timed on real cells: what is carried, what it adds up to, and what it must take."""

import asyncio

import pytest
from benchmarks.gpu.moves.cells import Scene, pair
from benchmarks.gpu.moves.handing import Hands
from benchmarks.gpu.moves.sizes import SIZES, made
from benchmarks.gpu.moves.switching import Switches
from benchmarks.gpu.moves.ways import DISK, DOWN, THERE, UP, floor_s

MODEL = {"weight_bytes": 10, "state_bytes": 60}
SPEEDS = {UP: 10.0, DOWN: 5.0, DISK: 1.0}
PREFIX = 200


@pytest.mark.parametrize(
    ("what", "seconds"),
    [
        ("to training, core, first", 6.0),
        ("to training, satellite, again", 3.0),
        ("to rollout, core, again", 12.0),
        ("to rollout, satellite, again", None),
        ("to rollout, satellite with weights, again", 1.0),
        ("publication, first", 12.0),
        ("hand-off of 8,192 tokens, first", 3.0),
        ("prefill of 8,192 tokens, first", None),
    ],
)
def test_a_floor_is_the_time_of_the_copies_alone(what, seconds):
    assert seconds == floor_s(what, MODEL, SPEEDS, carried=10)


@pytest.mark.parametrize(
    ("what", "moved"),
    [("to training, satellite, first", 2 * MODEL["weight_bytes"]), ("hand-off of 8 tokens", 20)],
)
def test_what_is_lent_is_read_and_written_on_the_device(what, moved):
    speeds = {**SPEEDS, THERE: 5.0}

    assert moved / 5 == floor_s(what, MODEL, speeds, carried=10, lent=True)


def test_a_machine_without_a_gpu_has_no_floor():
    assert None is floor_s("to training, core, first", MODEL, {"memory copy": 1.0})


@pytest.mark.parametrize(("size", "parameters"), [("0.13B", 135e6), ("0.6B", 596e6)])
def test_the_shapes_are_those_of_the_models_they_are_named_after(size, parameters):
    fields = SIZES[size]
    head, layers = fields["head_dim"], fields["num_hidden_layers"]
    heads = fields["num_attention_heads"] + fields["num_key_value_heads"]
    attention = 2 * fields["hidden_size"] * heads * head
    layer = attention + 3 * fields["hidden_size"] * fields["intermediate_size"]
    embedding = fields["vocab_size"] * fields["hidden_size"]

    assert parameters == pytest.approx(embedding + layers * layer, rel=0.01)


@pytest.mark.slow
def test_cells_move_as_they_do_in_a_run(tmp_path):
    """Both engines end with what was published, and a call's whole blocks follow it."""
    sizes = made("tiny", tmp_path / "model", device="cpu")
    scene = Scene(
        model=tmp_path / "model", folder=tmp_path / "cells", device="cpu", kv_tokens=2_048
    )

    async def moves():
        async with pair(scene) as both:
            executor = Hands(both, sizes["vocabulary"])
            found = dict([one async for one in executor.compared(PREFIX, "first")])
            switches = Switches(both, tmp_path / "checkpoints")
            found |= dict([one async for one in switches.burst("first")])
            found |= dict([one async for one in switches.called_home("again")])
            return found, [await one.health() for one in both.cells.values()]

    found, health = asyncio.run(moves())

    moved = found[f"hand-off of {PREFIX} tokens, first"]
    # The call goes on until it is pinned, for as many tokens as a busy machine lets it.
    assert PREFIX // 16 * 16 <= moved["tokens"]
    assert 0 == moved["tokens"] % 16
    assert moved["tokens"] * sizes["kv_bytes_per_token"] < moved["bytes"]
    assert sizes["weight_bytes"] <= found["to training, satellite, first"]["bytes"]
    assert [(True, 1), (True, 1)] == [(one.engine_ready, one.engine_version) for one in health]
    for what, phases in (
        ("to training, core, first", ["rest", "restore"]),
        ("to training, satellite, first", ["rest", "restore", "expose", "pull"]),
        ("to rollout, core, first", ["rest", "wake"]),
        ("to rollout, satellite with weights, again", ["rest", "wake", "load"]),
        ("publication, first", ["save", "load"]),
    ):
        assert 0 < sum(found[what][one] for one in phases) <= found[what]["seconds"], what
