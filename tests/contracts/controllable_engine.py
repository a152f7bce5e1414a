"""What every engine of a cell promises under orders; each promise is one function.

Two sets of weights are loaded in turn, and answers must be those of the set that is in force.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gyre.inference.server.control_api import ControllableEngine
from gyre.model.network import Network
from gyre.types.errors import EngineDraining, EngineError, ModelError
from gyre.types.sampling import Chunk, GenerateRequest

Which = Literal["first", "second"]


class Subject(Protocol):
    """An engine under test, and what its weights should make it say."""

    engine: ControllableEngine
    tolerance: float
    """Most that a log-probability may be off, in nats."""

    def ask(self, *, max_tokens: int) -> GenerateRequest:
        """Always of the same prompt, ended by nothing but its length; ids differ."""
        ...

    def folder(self, which: Which) -> Path: ...

    def logprobs(self, which: Which, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
        """By a forward pass without any cache."""
        ...

    long_tokens: int
    """Of an ask that cannot be over before an order has been carried out."""


@dataclass
class Said:
    """What an engine said to one ask so far."""

    ask: GenerateRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    finish: str | None = None

    def take(self, chunk: Chunk) -> None:
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs or []
        self.versions += [chunk.version] * len(chunk.ids)
        self.finish = chunk.finish

    @classmethod
    def of(cls, ask: GenerateRequest, chunks: Sequence[Chunk]) -> "Said":
        said = cls(ask)
        for chunk in chunks:
            said.take(chunk)
        return said


def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Every token over itself and all before it."""
    found = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=True
    )
    return found.transpose(1, 2)


@torch.inference_mode()
def reference(network: Network, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """Log-probabilities of the output, by one forward pass over all of it."""
    ids = torch.tensor([*prompt, *output])
    states = network.hidden(ids, torch.arange(len(ids)), attend)
    logits = states[len(prompt) - 1 : -1] @ network.head.T
    chosen = ids[len(prompt) :, None]
    found: list[float] = logits.log_softmax(dim=-1).gather(1, chosen)[:, 0].tolist()
    return found


@torch.inference_mode()
def likeliest(network: Network, ids: Sequence[int]) -> int:
    """The token that a greedy engine says next."""
    states = network.hidden(torch.tensor(ids), torch.arange(len(ids)), attend)
    return int((network.head @ states[-1]).argmax())


async def answered(subject: Subject, *, max_tokens: int = 16) -> Said:
    said = Said(subject.ask(max_tokens=max_tokens))
    async for chunk in subject.engine.generate(said.ask):
        said.take(chunk)
    return said


def gaps(subject: Subject, said: Said, which: Which) -> list[float]:
    """How far each token's log-probability is from what these weights give for it."""
    prompt = array("i", said.ask.input_ids).tolist()
    wanted = subject.logprobs(which, prompt, said.ids)
    return [abs(one - two) for one, two in zip(wanted, said.logprobs, strict=True)]


def off(subject: Subject, said: Said, which: Which) -> float:
    """The largest of these differences."""
    return max(gaps(subject, said, which))


def assert_of(subject: Subject, said: Said, which: Which) -> None:
    other: Which = "second" if which == "first" else "first"

    assert off(subject, said, which) < subject.tolerance
    assert off(subject, said, other) > 10 * subject.tolerance


async def answers_are_those_of_the_weights_that_were_loaded_last(subject: Subject) -> None:
    """The prompt is the same each time, so that cached keys of other weights would show."""
    for version, which in ((1, "first"), (2, "second"), (3, "first")):
        await subject.engine.load(subject.folder(which), version=version)
        said = await answered(subject)

        assert {version} == set(said.versions)
        assert version == (await subject.engine.health()).version
        assert_of(subject, said, which)


async def a_call_goes_on_over_a_load_and_each_token_has_its_version(subject: Subject) -> None:
    await subject.engine.load(subject.folder("first"), version=4)
    seen = Said(subject.ask(max_tokens=subject.long_tokens))
    is_loaded, num_silent = False, 0
    async with aclosing(subject.engine.generate(seen.ask)) as chunks:
        async for chunk in chunks:
            seen.take(chunk)
            if not is_loaded and len(seen.ids) >= 8:
                await subject.engine.load(subject.folder("second"), version=5)
                is_loaded = True
            # An engine may tell versions at the end, and of tokens until then only that they came.
            num_silent += is_loaded and not chunk.ids
            if 5 in seen.versions or num_silent == 3:
                break
        all_of_it = Said.of(seen.ask, await subject.engine.cancel(seen.ask.id))

    assert [4, 5] == sorted(set(all_of_it.versions))
    assert sorted(all_of_it.versions) == all_of_it.versions
    assert 8 <= all_of_it.versions.count(4)
    assert seen.ids == all_of_it.ids[: len(seen.ids)]
    num_first = all_of_it.versions.count(4)
    assert max(gaps(subject, all_of_it, "first")[:num_first]) < subject.tolerance
    assert max(gaps(subject, all_of_it, "second")[num_first:]) < subject.tolerance


async def what_was_sampled_comes_back_from_a_cancel(subject: Subject) -> None:
    seen = Said(subject.ask(max_tokens=subject.long_tokens))
    eight = asyncio.Event()

    async def read() -> None:
        async for chunk in subject.engine.generate(seen.ask):
            seen.take(chunk)
            if len(seen.ids) >= 8:
                eight.set()

    reading = asyncio.create_task(read())
    await eight.wait()
    got = Said.of(seen.ask, await subject.engine.cancel(seen.ask.id))
    await reading

    assert ("abort", "abort") == (got.finish, seen.finish)
    assert len(got.ids) == len(got.logprobs) == len(got.versions) >= 8
    assert seen.ids == got.ids[: len(seen.ids)]
    assert () == await subject.engine.cancel(seen.ask.id)


async def nothing_is_sampled_while_it_is_paused(subject: Subject) -> None:
    await subject.engine.pause()
    waiting = asyncio.create_task(answered(subject, max_tokens=4))
    health = await subject.engine.health()
    was_answered = waiting.done()
    await subject.engine.resume()

    assert (True, "paused", False) == (health.ready, health.detail, was_answered)
    assert 4 == len((await waiting).ids)


async def at_rest_calls_end_and_asks_are_refused_until_it_wakes(subject: Subject) -> None:
    await subject.engine.load(subject.folder("second"), version=6)
    seen = Said(subject.ask(max_tokens=subject.long_tokens))
    async with aclosing(subject.engine.generate(seen.ask)) as chunks:
        async for chunk in chunks:
            seen.take(chunk)
            if seen.finish is None and len(seen.ids) >= 8:
                await subject.engine.offload()
    with pytest.raises(EngineDraining):
        await answered(subject)
    health = await subject.engine.health()
    await subject.engine.wake()
    said = await answered(subject)

    assert "abort" == seen.finish
    assert (False, 6) == (health.ready, health.version)
    assert (True, 6) == ((await subject.engine.health()).ready, said.versions[0])
    assert_of(subject, said, "second")


async def weights_that_are_not_what_they_say_are_refused(subject: Subject, tmp: Path) -> None:
    await subject.engine.load(subject.folder("first"), version=7)
    spoilt = tmp / "spoilt"
    spoilt.mkdir()
    for path in subject.folder("second").iterdir():
        data = bytearray(path.read_bytes())
        if path.suffix == ".safetensors":
            data[-1] ^= 1
        (spoilt / path.name).write_bytes(data)
    with pytest.raises(ModelError, match="hash"):
        await subject.engine.load(spoilt, version=8)
    said = await answered(subject)

    assert {7} == set(said.versions)
    assert_of(subject, said, "first")


async def another_ask_of_the_same_id_is_refused_and_leaves_the_first_alone(
    subject: Subject,
) -> None:
    seen = Said(subject.ask(max_tokens=subject.long_tokens))
    async with aclosing(subject.engine.generate(seen.ask)) as chunks:
        seen.take(await anext(chunks))
        with pytest.raises(EngineError, match="not over"):
            await anext(subject.engine.generate(seen.ask))
        num_before = len(seen.ids)
        while len(seen.ids) <= num_before:
            seen.take(await anext(chunks))
        got = Said.of(seen.ask, await subject.engine.cancel(seen.ask.id))

    assert "abort" == got.finish
    assert seen.ids == got.ids[: len(seen.ids)]


async def a_reply_ends_where_the_context_does_and_a_prompt_without_room_is_refused(
    subject: Subject,
) -> None:
    most = (await subject.engine.capacity()).context_tokens
    ask = subject.ask(max_tokens=100)
    prompt = array("i", ask.input_ids)
    full = prompt * (most // len(prompt) + 1)
    near = replace(ask, input_ids=full[: most - 6].tobytes())
    said = Said.of(near, [chunk async for chunk in subject.engine.generate(near)])
    beyond = replace(subject.ask(max_tokens=1), input_ids=full[:most].tobytes())
    with pytest.raises(EngineError) as refused:
        await anext(subject.engine.generate(beyond))

    # Some keep the last place or two free.
    assert 4 <= len(said.ids) <= 6
    assert "length" == said.finish
    assert not refused.value.retryable


async def it_says_how_full_it_is(subject: Subject) -> None:
    before = await subject.engine.capacity()
    async with aclosing(
        subject.engine.generate(subject.ask(max_tokens=subject.long_tokens))
    ) as chunks:
        await anext(chunks)
        during = await subject.engine.capacity()
        await chunks.aclose()

    assert (0, 0, 1) == (before.running, before.waiting, during.running)
    assert 0 < before.context_tokens <= before.blocks * before.block_tokens
    assert 0 < before.most_running


LOADS: list[Callable[[Subject], Awaitable[None]]] = [
    answers_are_those_of_the_weights_that_were_loaded_last,
    a_call_goes_on_over_a_load_and_each_token_has_its_version,
]
"""Promises about weights, to be kept whichever way they come."""
OTHERS: list[Callable[[Subject], Awaitable[None]]] = [
    what_was_sampled_comes_back_from_a_cancel,
    nothing_is_sampled_while_it_is_paused,
    at_rest_calls_end_and_asks_are_refused_until_it_wakes,
    another_ask_of_the_same_id_is_refused_and_leaves_the_first_alone,
    a_reply_ends_where_the_context_does_and_a_prompt_without_room_is_refused,
    it_says_how_full_it_is,
]
PROMISES = [*LOADS, *OTHERS]
