"""What every engine promises behind the Engine port; each promise is one function.

`EVERY_ENGINE` is asked of all; `SCRIPTED` of engines that follow a script and fail on demand.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from gyre.testing.script import FastCoder, Script, ScriptedModel, ScriptedReply, after
from gyre.testing.scripted_engine import EngineFault
from gyre.testing.tokenizer import tokenizer
from gyre.types.errors import EngineError
from gyre.types.protocols import Engine
from gyre.types.sampling import GenerateRequest, SamplingParams

CODER = FastCoder(tokenizer())
STOP = CODER.encode("<|im_end|>")[0]
GARBAGE = ("json", "lengths", "nan", "no ids")


def script() -> Script:
    """A short reply, a long one, one that runs out, and silence."""
    return Script(
        [
            after("say hello", ScriptedReply(text="hello, how do you do?")),
            after("count", ScriptedReply(text=" ".join(str(number) for number in range(40)))),
            after("run out", ScriptedReply(text="this goes on and", finish="length")),
            after("be silent", ScriptedReply(ids=())),
        ]
    )


MODEL = ScriptedModel(script(), CODER)


@dataclass(frozen=True)
class Expected:
    """What an ask has to be answered with."""

    ids: list[int]
    logprobs: list[float]
    finish: str


class Subject(Protocol):
    """An engine under test, and the hand behind it."""

    engine: Engine
    model: str
    """What the engine calls its model."""
    says_version: bool
    tolerance: float
    """Most that a log-probability may be off."""

    def ask(
        self, said: str, *, sampled: Sequence[int] = (), max_tokens: int = 1000
    ) -> GenerateRequest:
        """A prompt that depends on what is said, continued after what was sampled for it.

        "say hello" is answered shortly and ends with a stop id, "count" has twelve tokens or more.
        """
        ...

    def expected(self, asked: GenerateRequest) -> Expected: ...

    async def endless(self) -> GenerateRequest:
        """An ask that is not over before its reader ends it, and sends eight tokens or more."""
        ...

    async def load(self, version: int) -> None: ...

    async def wait_aborted(self, count: int) -> None: ...


class ScriptedSubject(Subject, Protocol):
    """One whose engine follows the script, and fails as told."""

    async def spoil(self, fault: EngineFault | None) -> None: ...

    def prompts(self) -> list[bytes]: ...


class FollowsTheScript:
    """What is asked and expected of a subject that follows the script."""

    model = "scripted"
    tolerance = 0.0

    def ask(
        self, said: str, *, sampled: Sequence[int] = (), max_tokens: int = 1000
    ) -> GenerateRequest:
        return ask(said, sampled=sampled, max_tokens=max_tokens)

    def expected(self, asked: GenerateRequest) -> Expected:
        plan = MODEL.plan(asked.input_ids, asked.sampling.max_tokens)
        return Expected(plan.ids, plan.logprobs, plan.finish)

    async def endless(self: ScriptedSubject) -> GenerateRequest:
        await self.spoil(EngineFault(kind="stall", after=8))
        return ask("count")


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


def ask(said: str, *, sampled: Sequence[int] = (), max_tokens: int = 1000) -> GenerateRequest:
    text = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    ids = [*CODER.encode(text), *sampled]
    return GenerateRequest(
        id=f"ask-{next(_numbers)}",
        input_ids=array("i", ids).tobytes(),
        sampling=SamplingParams(max_tokens=max_tokens, stop_ids=(STOP,)),
        execution="e",
    )


_numbers = iter(range(10**6, 10**7))


async def collect(engine: Engine, asked: GenerateRequest, into: Answer | None = None) -> Answer:
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


def assert_same(subject: Subject, wanted: Expected, found: Answer) -> None:
    assert (wanted.ids, wanted.finish) == (found.ids, found.finish)
    assert found.logprobs == pytest.approx(wanted.logprobs, abs=subject.tolerance, rel=0)


async def the_output_is_exact_and_log_probabilities_are_aligned(subject: Subject) -> None:
    asked = subject.ask("count")
    answer = await collect(subject.engine, asked)

    assert_same(subject, subject.expected(asked), answer)


async def the_stop_id_is_kept(subject: Subject) -> None:
    asked = subject.ask("say hello")
    answer = await collect(subject.engine, asked)

    assert answer.ids[-1] in asked.sampling.stop_ids
    assert_same(subject, subject.expected(asked), answer)


async def running_out_of_tokens_is_said(subject: Subject) -> None:
    short = await collect(subject.engine, subject.ask("count", max_tokens=7))

    assert (7, "length") == (len(short.ids), short.finish)


async def the_text_of_a_reply_is_what_was_scripted(subject: ScriptedSubject) -> None:
    hello = await collect(subject.engine, ask("say hello"))
    whole = await collect(subject.engine, ask("run out"))

    assert "hello, how do you do?<|im_end|>" == CODER.decode(hello.ids)
    assert ("this goes on and", "length") == (CODER.decode(whole.ids), whole.finish)


async def an_empty_reply_is_an_answer(subject: ScriptedSubject) -> None:
    """T26."""
    answer = await collect(subject.engine, ask("be silent"))

    assert ([], "stop") == (answer.ids, answer.finish)


async def the_prompt_is_echoed_once(subject: Subject) -> None:
    """T01."""
    asked = subject.ask("count")
    answer = await collect(subject.engine, asked)

    assert [array("i", asked.input_ids).tolist()] == answer.echoes


async def the_engine_gets_exactly_the_ids_it_was_sent(subject: ScriptedSubject) -> None:
    asked = ask("say hello")
    await collect(subject.engine, asked)

    assert asked.input_ids == subject.prompts()[-1]


async def a_wrong_echo_is_passed_on(subject: ScriptedSubject) -> None:
    """T01: whoever compares must see it."""
    asked = ask("say hello")
    await subject.spoil(EngineFault(kind="echo"))
    answer = await collect(subject.engine, asked)

    assert [array("i", asked.input_ids).tolist()] != answer.echoes
    assert 1 == len(answer.echoes)


async def sampled_tokens_in_the_prompt_are_continued(subject: Subject) -> None:
    """T07."""
    whole = await collect(subject.engine, subject.ask("count"))
    rest = await collect(subject.engine, subject.ask("count", sampled=whole.ids[:11]))

    assert whole.ids[11:] == rest.ids
    assert rest.logprobs == pytest.approx(whole.logprobs[11:], abs=subject.tolerance, rel=0)


async def closing_early_aborts_at_the_engine(subject: Subject) -> None:
    asked = await subject.endless()
    async with aclosing(subject.engine.generate(asked)) as chunks:
        async for chunk in chunks:
            if chunk.ids:
                break
    await subject.wait_aborted(1)


async def cancelling_aborts_at_the_engine(subject: Subject) -> None:
    asked = await subject.endless()
    answer = Answer()
    task = asyncio.create_task(collect(subject.engine, asked, answer))
    await answer.eight.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await subject.wait_aborted(1)


async def a_cut_keeps_the_tokens_before_it(subject: ScriptedSubject) -> None:
    asked = ask("count")
    await subject.spoil(EngineFault(kind="die", after=10))
    answer = Answer()
    with pytest.raises(EngineError) as error:
        await collect(subject.engine, asked, answer)
    plan = MODEL.plan(asked.input_ids, 1000)

    assert error.value.retryable
    assert (plan.ids[:10], plan.logprobs[:10]) == (answer.ids, answer.logprobs)


async def garbage_is_refused_and_what_came_before_it_stands(subject: ScriptedSubject) -> None:
    """FAULTS 6, T27: of the event that is wrong nothing is yielded."""
    for kind in GARBAGE:
        asked = ask("count")
        await subject.spoil(EngineFault(kind=kind, after=8))
        answer = Answer()
        with pytest.raises(EngineError) as error:
            await collect(subject.engine, asked, answer)
        plan = MODEL.plan(asked.input_ids, 1000)

        assert error.value.retryable, kind
        assert (plan.ids[:8], plan.logprobs[:8]) == (answer.ids, answer.logprobs), kind


async def absent_log_probabilities_stay_absent(subject: ScriptedSubject) -> None:
    """T27: never filled with zeros."""
    await subject.spoil(EngineFault(kind="no logprobs"))
    answer = await collect(subject.engine, ask("count"))

    assert answer.logprobs is None
    assert MODEL.plan(ask("count").input_ids, 1000).ids == answer.ids


async def an_engine_that_aborts_by_itself_says_so(subject: ScriptedSubject) -> None:
    asked = ask("count")
    await subject.spoil(EngineFault(kind="abort", after=6))
    answer = await collect(subject.engine, asked)

    assert "abort" == answer.finish
    assert MODEL.plan(asked.input_ids, 1000).ids[:6] == answer.ids


async def a_busy_engine_may_be_asked_again_and_a_bad_request_may_not(
    subject: ScriptedSubject,
) -> None:
    retryable = {}
    for status in (400, 413, 422, 429, 500, 503):
        await subject.spoil(EngineFault(kind="refuse", status=status))
        with pytest.raises(EngineError, match=str(status)) as error:
            await collect(subject.engine, ask("count"))
        retryable[status] = error.value.retryable

    assert {400: False, 413: False, 422: False, 429: True, 500: True, 503: True} == retryable


async def health_tells_readiness_and_version(subject: Subject) -> None:
    await subject.load(7)
    health = await subject.engine.health()

    assert (True, 7, subject.model) == (health.ready, health.version, health.model)


async def each_token_has_the_version_that_sampled_it(subject: Subject) -> None:
    await subject.load(4)
    answer = await collect(subject.engine, subject.ask("say hello"))

    assert {4 if subject.says_version else None} == set(answer.versions)


async def many_asks_at_once_do_not_mix(subject: Subject) -> None:
    asked = [subject.ask(said) for said in ("count", "say hello", "run out") * 10]
    answers = await asyncio.gather(*(collect(subject.engine, one) for one in asked))

    for one, answer in zip(asked, answers, strict=True):
        assert_same(subject, subject.expected(one), answer)


EVERY_ENGINE: list[Callable[[Subject], Awaitable[None]]] = [
    the_output_is_exact_and_log_probabilities_are_aligned,
    the_stop_id_is_kept,
    running_out_of_tokens_is_said,
    the_prompt_is_echoed_once,
    sampled_tokens_in_the_prompt_are_continued,
    closing_early_aborts_at_the_engine,
    cancelling_aborts_at_the_engine,
    health_tells_readiness_and_version,
    each_token_has_the_version_that_sampled_it,
    many_asks_at_once_do_not_mix,
]

SCRIPTED: list[Callable[[ScriptedSubject], Awaitable[None]]] = [
    *EVERY_ENGINE,
    the_text_of_a_reply_is_what_was_scripted,
    an_empty_reply_is_an_answer,
    the_engine_gets_exactly_the_ids_it_was_sent,
    a_wrong_echo_is_passed_on,
    a_cut_keeps_the_tokens_before_it,
    garbage_is_refused_and_what_came_before_it_stands,
    absent_log_probabilities_stay_absent,
    an_engine_that_aborts_by_itself_says_so,
    a_busy_engine_may_be_asked_again_and_a_bad_request_may_not,
]
