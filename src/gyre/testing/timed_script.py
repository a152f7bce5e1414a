"""Scripts with durations."""

import asyncio
import math
from array import array
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gyre.inference.engine.request import Request, refusal
from gyre.testing.engine_server import load_script
from gyre.testing.script import (
    TURN_OPENS,
    Coder,
    Conversation,
    NoReply,
    Script,
    ScriptedAnswer,
    ScriptedModel,
    ScriptedReply,
)
from gyre.types.errors import ConfigError
from gyre.types.sampling import Chunk


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """Raises ConfigError that names the first option that is not known."""
    for key in options:
        if key not in known:
            raise ConfigError(f"{key}: unknown option; known here: {', '.join(sorted(known))}")


def number(options: Mapping[str, str], key: str, default: float) -> float:
    """A finite number of 0 or more."""
    if key not in options:
        return default
    try:
        found = float(options[key])
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise ConfigError(f"{key}: expected a number of 0 or more, found {options[key]!r}")
    return found


def positive(options: Mapping[str, str], key: str) -> float | None:
    """A number above 0, or nothing where it is not given."""
    if key not in options:
        return None
    found = number(options, key, 0.0)
    if not found:
        raise ConfigError(f"{key}: expected a number above 0, found {options[key]!r}")
    return found


def count(options: Mapping[str, str], key: str, default: int) -> int:
    """A whole number of 1 or more."""
    if key not in options:
        return default
    said = options[key]
    if not (said.isascii() and said.isdigit() and int(said)):
        raise ConfigError(f"{key}: expected a whole number of 1 or more, found {said!r}")
    return int(said)


WHOLE = 2**31 - 1
"""More tokens than any reply has."""
PACE_OPTIONS = ("chunk_tokens", "prefill_s", "reply_s", "scale", "tokens_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedReply(ScriptedReply):
    """A reply that says itself how long it takes."""

    reply_s: float
    """From its beginning to its last token, times the engine's scale."""
    until: Path | None = None
    """If given, the second half of it is not said before this file is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things take; by default no time at all."""

    tokens_per_s: float | None = None
    """Of each call, however many there are."""
    reply_s: float | None = None
    """Of every whole reply that does not say it itself; comes before `tokens_per_s`."""
    prefill_s: float = 0.0
    """Of each token before the reply that is not cached."""
    scale: float = 1.0
    """Times every duration, those that replies say too."""
    chunk_tokens: int = 4
    """Tokens that come at once."""

    def prefill_takes_s(self, num_tokens: int) -> float:
        return num_tokens * self.prefill_s * self.scale

    def reply_takes_s(self, reply: ScriptedReply, num_tokens: int) -> float:
        """From its first token to its last, when nothing of it was said elsewhere."""
        if isinstance(reply, TimedReply):
            return reply.reply_s * self.scale
        if self.reply_s is not None:
            return self.reply_s * self.scale
        return 0.0 if self.tokens_per_s is None else num_tokens / self.tokens_per_s * self.scale


def read_pace(options: Mapping[str, str]) -> Pace:
    """Those of the options that are a pace; ConfigError names the one that is wrong."""
    return Pace(
        tokens_per_s=positive(options, "tokens_per_s"),
        reply_s=number(options, "reply_s", 0.0) if "reply_s" in options else None,
        prefill_s=number(options, "prefill_s", 0.0),
        scale=number(options, "scale", 1.0),
        chunk_tokens=count(options, "chunk_tokens", 4),
    )


def read_script(options: Mapping[str, str]) -> Script:
    """What the option `script` names, as MODULE:FUNCTION or FILE.py:FUNCTION."""
    if "script" not in options:
        raise ConfigError("script: expected MODULE:FUNCTION or FILE.py:FUNCTION, found none")
    try:
        return load_script(options["script"])
    except (ImportError, AttributeError, OSError, ValueError, SystemExit) as error:
        raise ConfigError(f"script: {options['script']}: {error}") from error


class PausableClock:
    """Seconds of the running event loop, without those in which it was paused."""

    def __init__(self) -> None:
        self._paused_s: float | None = None
        """When the pause began that is not over."""
        self._held_s = 0.0
        """How long the pauses before took."""

    @property
    def is_paused(self) -> bool:
        return self._paused_s is not None

    def now_s(self) -> float:
        now_s = asyncio.get_running_loop().time() if self._paused_s is None else self._paused_s
        return now_s - self._held_s

    def pause(self) -> None:
        if self._paused_s is None:
            self._paused_s = asyncio.get_running_loop().time()

    def resume(self) -> None:
        if self._paused_s is not None:
            self._held_s += asyncio.get_running_loop().time() - self._paused_s
            self._paused_s = None


@dataclass(slots=True, eq=False)
class TimedCall:
    """One call of an engine, what it will say, and when it gets on."""

    request: Request
    plan: ScriptedAnswer
    chunk_tokens: int
    rest_s: float
    """How long all that is left of the reply takes."""
    due_s: float = 0.0
    """When its prefill or its next chunk is done, on the engine's clock."""
    pending_s: float = 0.0
    """What follows its prefill before the next chunk."""
    until: Path | None = None
    """A file without which it says no more than `num_before` tokens."""
    num_before: int = 0
    is_running: bool = False
    is_prefilled: bool = False
    is_over: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def num_tokens(self) -> int:
        """Of the prompt and everything it may say."""
        return self.request.num_prompt + self._num_said

    @property
    def next_chunk_s(self) -> float:
        if not self.plan.ids:
            return self.rest_s
        left = self._num_said - self.request.num_output
        return self.rest_s * min(self.chunk_tokens, left) / len(self.plan.ids)

    @property
    def is_held(self) -> bool:
        """Whether what comes next must wait for a file."""
        if self.until is None or not self.is_prefilled or self.request.num_output < self.num_before:
            return False
        return not self.until.exists()

    def say(self, version: int) -> Chunk:
        """The next tokens of the reply, ended where the ask or the script says."""
        first, plan = self.request.num_output, self.plan
        ids: list[int] = []
        finish = None
        for at in range(first, min(first + self.chunk_tokens, len(plan.ids))):
            finish = self.request.take(plan.ids[at], plan.logprobs[at], version).finish
            ids.append(plan.ids[at])
            if finish is not None:
                break
        if self.request.num_output == len(plan.ids):
            finish = plan.finish
        prompt = self.request.call.tokens[: self.request.num_prompt]
        return Chunk(
            ids=ids,
            logprobs=plan.logprobs[first : first + len(ids)],
            version=version,
            finish=finish,
            prompt_ids=None if first else prompt.tolist(),
        )

    async def wait(self, within_s: float | None = None) -> None:
        """Until something has changed for it, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.woken.wait()
        self.woken.clear()

    @property
    def _num_said(self) -> int:
        return min(len(self.plan.ids), self.request.most_tokens)


class Player:
    """A script read with one tokenizer, at a pace."""

    def __init__(self, script: Script, coder: Coder, pace: Pace) -> None:
        self._script = script
        self._pace = pace
        # One rule, which notes the reply, because a plan does not say how long it takes.
        noting = Script([self._note], opening=script.opening)
        self._model = ScriptedModel(noting, coder)
        self._opens = array("i", coder.encode(TURN_OPENS)).tobytes()
        self._reply = ScriptedReply()

    def play(self, request: Request) -> TimedCall:
        """What is left of the reply, in its part of the time; EngineError if there is none."""
        try:
            plan = self._model.plan(self._with_a_turn(request.ask.input_ids), WHOLE)
        except NoReply as error:
            raise refusal(request.ask, str(error)) from error
        whole = plan.resumed + len(plan.ids)
        whole_s = self._pace.reply_takes_s(self._reply, whole)
        one = TimedCall(
            request=request,
            plan=plan,
            chunk_tokens=self._pace.chunk_tokens,
            rest_s=whole_s * len(plan.ids) / whole if whole else whole_s,
        )
        one.pending_s = one.next_chunk_s
        if isinstance(self._reply, TimedReply):
            one.until = self._reply.until
            one.num_before = max(0, whole // 2 - plan.resumed)
        return one

    def _with_a_turn(self, input_ids: bytes) -> bytes:
        """A prompt in which no turn opens is one that says nothing: health is asked so."""
        (opens,) = memoryview(self._opens).cast("i")
        return input_ids if opens in memoryview(input_ids).cast("i") else self._opens + input_ids

    def _note(self, conversation: Conversation) -> ScriptedReply:
        self._reply = self._script.reply_to(conversation)
        return self._reply
