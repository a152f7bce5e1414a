"""What every engine promises behind the Engine port; each promise is one function."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Protocol

import pytest

from gyre.testing.script import FastCoder, Reply, Script, ScriptedModel, after, logprobs
from gyre.testing.scripted_engine import Fault
from gyre.testing.tokenizer import tokenizer
from gyre.words.errors import EngineError
from gyre.words.ports import Engine
from gyre.words.samples import Ask, Sampling

CODER = FastCoder(tokenizer())
STOP = CODER.encode("<|im_end|>")[0]
GARBAGE = ("json", "lengths", "nan", "no ids")


def script() -> Script:
    """A short reply, a long one, one that runs out, and silence."""
    return Script(
        [
            after("say hello", Reply(text="hello, how do you do?")),
            after("count", Reply(text=" ".join(str(number) for number in range(40)))),
            after("run out", Reply(text="this goes on and", finish="length")),
            after("be silent", Reply(ids=())),
        ]
    )


MODEL = ScriptedModel(script(), CODER)


class Subject(Protocol):
    """An engine under test, and the hand behind it."""

    engine: Engine
    says_version: bool

    async def spoil(self, fault: Fault | None) -> None: ...

    async def load(self, version: int) -> None: ...

    async def wait_aborted(self, count: int) -> None: ...

    def prompts(self) -> list[bytes]: ...


@dataclass
class Answer:
    """What an engine said so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    finish: str | None = None
    echoes: list[list[int]] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    """One per id."""
    eight: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once eight ids have come."""


def ask(said: str, *, sampled: list[int] | None = None, max_tokens: int = 1000) -> Ask:
    text = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    ids = CODER.encode(text) + (sampled or [])
    return Ask(
        id=f"ask-{next(_numbers)}",
        input_ids=array("i", ids).tobytes(),
        sampling=Sampling(max_tokens=max_tokens, stop_ids=(STOP,)),
        execution="e",
    )


_numbers = iter(range(10**6, 10**7))


async def collect(engine: Engine, asked: Ask, into: Answer | None = None) -> Answer:
    """Everything the engine says; `into` has what came before an error."""
    answer = into if into is not None else Answer()
    async for chunk in engine.generate(asked):
        assert answer.finish is None, "a chunk after the last"
        answer.ids += chunk.ids
        answer.versions += [chunk.version] * len(chunk.ids)
        if chunk.ids and (chunk.logprobs is None or answer.logprobs is None):
            answer.logprobs = None
        elif chunk.ids:
            answer.logprobs += chunk.logprobs
        if chunk.prompt_ids is not None:
            answer.echoes.append(chunk.prompt_ids)
        answer.finish = chunk.finish
        if len(answer.ids) >= 8:
            answer.eight.set()
    return answer


async def the_output_is_exact_and_log_probabilities_are_aligned(subject: Subject) -> None:
    asked = ask("count")
    answer = await collect(subject.engine, asked)
    plan = MODEL.plan(asked.input_ids, 1000)

    assert plan.ids == answer.ids
    assert logprobs(asked.input_ids, plan.ids) == answer.logprobs
    assert "stop" == answer.finish


async def the_stop_id_is_kept(subject: Subject) -> None:
    answer = await collect(subject.engine, ask("say hello"))

    assert STOP == answer.ids[-1]
    assert "hello, how do you do?<|im_end|>" == CODER.decode(answer.ids)


async def running_out_of_tokens_is_said(subject: Subject) -> None:
    short = await collect(subject.engine, ask("count", max_tokens=7))
    whole = await collect(subject.engine, ask("run out"))

    assert (7, "length") == (len(short.ids), short.finish)
    assert ("this goes on and", "length") == (CODER.decode(whole.ids), whole.finish)


async def an_empty_reply_is_an_answer(subject: Subject) -> None:
    """T26."""
    answer = await collect(subject.engine, ask("be silent"))

    assert ([], "stop") == (answer.ids, answer.finish)


async def the_prompt_is_echoed_once(subject: Subject) -> None:
    """T01."""
    asked = ask("count")
    answer = await collect(subject.engine, asked)

    assert [array("i", asked.input_ids).tolist()] == answer.echoes


async def the_engine_gets_exactly_the_ids_it_was_sent(subject: Subject) -> None:
    asked = ask("say hello")
    await collect(subject.engine, asked)

    assert asked.input_ids == subject.prompts()[-1]


async def a_wrong_echo_is_passed_on(subject: Subject) -> None:
    """T01: whoever compares must see it."""
    asked = ask("say hello")
    await subject.spoil(Fault(kind="echo"))
    answer = await collect(subject.engine, asked)

    assert [array("i", asked.input_ids).tolist()] != answer.echoes
    assert 1 == len(answer.echoes)


async def sampled_tokens_in_the_prompt_are_continued(subject: Subject) -> None:
    """T07."""
    whole = await collect(subject.engine, ask("count"))
    rest = await collect(subject.engine, ask("count", sampled=whole.ids[:11]))

    assert whole.ids[11:] == rest.ids
    assert whole.logprobs[11:] == rest.logprobs


async def closing_early_aborts_at_the_engine(subject: Subject) -> None:
    await subject.spoil(Fault(kind="stall", after=8))
    async with aclosing(subject.engine.generate(ask("count"))) as chunks:
        async for chunk in chunks:
            if chunk.ids:
                break
    await subject.wait_aborted(1)


async def cancelling_aborts_at_the_engine(subject: Subject) -> None:
    await subject.spoil(Fault(kind="stall", after=8))
    answer = Answer()
    task = asyncio.create_task(collect(subject.engine, ask("count"), answer))
    await answer.eight.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await subject.wait_aborted(1)


async def a_cut_keeps_the_tokens_before_it(subject: Subject) -> None:
    asked = ask("count")
    await subject.spoil(Fault(kind="die", after=10))
    answer = Answer()
    with pytest.raises(EngineError) as error:
        await collect(subject.engine, asked, answer)
    plan = MODEL.plan(asked.input_ids, 1000)

    assert error.value.retryable
    assert (plan.ids[:10], plan.logprobs[:10]) == (answer.ids, answer.logprobs)


async def garbage_is_refused_and_what_came_before_it_stands(subject: Subject) -> None:
    """FAULTS 6, T27: of the event that is wrong nothing is yielded."""
    for kind in GARBAGE:
        asked = ask("count")
        await subject.spoil(Fault(kind=kind, after=8))
        answer = Answer()
        with pytest.raises(EngineError) as error:
            await collect(subject.engine, asked, answer)
        plan = MODEL.plan(asked.input_ids, 1000)

        assert error.value.retryable, kind
        assert (plan.ids[:8], plan.logprobs[:8]) == (answer.ids, answer.logprobs), kind


async def absent_log_probabilities_stay_absent(subject: Subject) -> None:
    """T27: never filled with zeros."""
    await subject.spoil(Fault(kind="no logprobs"))
    answer = await collect(subject.engine, ask("count"))

    assert answer.logprobs is None
    assert MODEL.plan(ask("count").input_ids, 1000).ids == answer.ids


async def an_engine_that_aborts_by_itself_says_so(subject: Subject) -> None:
    asked = ask("count")
    await subject.spoil(Fault(kind="abort", after=6))
    answer = await collect(subject.engine, asked)

    assert "abort" == answer.finish
    assert MODEL.plan(asked.input_ids, 1000).ids[:6] == answer.ids


async def a_busy_engine_may_be_asked_again_and_a_bad_request_may_not(subject: Subject) -> None:
    retryable = {}
    for status in (400, 413, 422, 429, 500, 503):
        await subject.spoil(Fault(kind="refuse", status=status))
        with pytest.raises(EngineError, match=str(status)) as error:
            await collect(subject.engine, ask("count"))
        retryable[status] = error.value.retryable

    assert {400: False, 413: False, 422: False, 429: True, 500: True, 503: True} == retryable


async def health_tells_readiness_and_version(subject: Subject) -> None:
    await subject.load(7)
    health = await subject.engine.health()

    assert (True, 7, "scripted") == (health.ready, health.version, health.model)


async def each_token_has_the_version_that_sampled_it(subject: Subject) -> None:
    await subject.load(4)
    answer = await collect(subject.engine, ask("say hello"))

    assert {4 if subject.says_version else None} == set(answer.versions)


async def many_asks_at_once_do_not_mix(subject: Subject) -> None:
    asked = [ask("count"), ask("say hello"), ask("run out")] * 10
    asked = [replace(one, id=f"{one.id}-{number}") for number, one in enumerate(asked)]
    answers = await asyncio.gather(*(collect(subject.engine, one) for one in asked))

    assert [MODEL.plan(one.input_ids, 1000).ids for one in asked] == [a.ids for a in answers]


CONTRACT: list[Callable[[Subject], Awaitable[None]]] = [
    the_output_is_exact_and_log_probabilities_are_aligned,
    the_stop_id_is_kept,
    running_out_of_tokens_is_said,
    an_empty_reply_is_an_answer,
    the_prompt_is_echoed_once,
    the_engine_gets_exactly_the_ids_it_was_sent,
    a_wrong_echo_is_passed_on,
    sampled_tokens_in_the_prompt_are_continued,
    closing_early_aborts_at_the_engine,
    cancelling_aborts_at_the_engine,
    a_cut_keeps_the_tokens_before_it,
    garbage_is_refused_and_what_came_before_it_stands,
    absent_log_probabilities_stay_absent,
    an_engine_that_aborts_by_itself_says_so,
    a_busy_engine_may_be_asked_again_and_a_bad_request_may_not,
    health_tells_readiness_and_version,
    each_token_has_the_version_that_sampled_it,
    many_asks_at_once_do_not_mix,
]
