"""A ChatML reply read back: thinking first, then text and tool calls in any order."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gyre.renderers.tokens import PackageTokenizer
from gyre.renderers.tool_calls import read_call
from gyre.types.ports import ParsedCall, ParsedReply

MOST_ENDS = 16
"""How many closing tags are tried for one call: its JSON may spell some of them itself."""


class Markup(StrEnum):
    """The template's own words, each a token in some vocabularies and plain text in others."""

    OPENS = "<|im_start|>"
    CLOSES = "<|im_end|>"
    THINK = "<think>"
    THINK_END = "</think>"
    CALL = "<tool_call>"
    CALL_END = "</tool_call>"
    RESULT = "<tool_response>"
    RESULT_END = "</tool_response>"


_READ = (Markup.THINK, Markup.THINK_END, Markup.CALL, Markup.CALL_END)


@dataclass(frozen=True, slots=True)
class _Lexeme:
    """A stretch of a reply: one markup, or text between two."""

    markup: Markup | None
    text: str
    end: int
    """Index of the id after it."""


class Reader:
    """Reads replies of one tokenizer; where a markup is a token, only that token counts (T24)."""

    def __init__(
        self,
        tokens: PackageTokenizer,
        stops: Sequence[int],
        *,
        opens: int,
        generation: Sequence[int],
    ) -> None:
        self._tokens = tokens
        self._stops = frozenset(stops)
        self._opens = opens
        self._generation = list(generation)
        self._by_id = {tokens.added[text]: text for text in _READ if text in tokens.added}
        spelled = [re.escape(text) for text in _READ if text not in tokens.added]
        self._by_text = re.compile("|".join(spelled)) if spelled else None

    def read(self, output: Sequence[int], prompt_tail: Sequence[int]) -> ParsedReply:
        lexemes = list(self._lexemes(output))
        thought, rest = self._thought(lexemes, prompt_tail)
        if rest is None:
            return ParsedReply(text="", reasoning=thought.strip("\n") or None, calls=())
        text, calls = _content(lexemes[rest:])
        if rest:
            text = text.lstrip("\n")
        if calls:
            text = text.strip("\n")
        return ParsedReply(text=text, reasoning=thought.strip("\n") or None, calls=tuple(calls))

    def thinking_is_open(self, output: Sequence[int], prompt_tail: Sequence[int]) -> bool:
        """Whether the reply ends inside its thinking."""
        think, think_end = (self._tokens.added.get(one) for one in _READ[:2])
        if think_end is not None and think_end in output:
            return False
        if think is not None and think not in output and not self._was_begun(prompt_tail):
            return False
        return self._thought(list(self._lexemes(output)), prompt_tail)[1] is None

    def _thought(
        self, lexemes: list[_Lexeme], prompt_tail: Sequence[int]
    ) -> tuple[str, int | None]:
        """The thinking, and where the rest begins; None when the thinking does not end."""
        start = 0
        if not self._was_begun(prompt_tail):
            blank = [at for at, one in enumerate(lexemes) if one.markup or one.text.strip()]
            if not blank or lexemes[blank[0]].markup is not Markup.THINK:
                return "", 0
            start = blank[0] + 1
        kinds = [one.markup for one in lexemes]
        if Markup.THINK_END in kinds[start:]:
            end = kinds.index(Markup.THINK_END, start)
            return _spelled(lexemes[start:end]), end + 1
        if Markup.CALL in kinds[start:]:
            # A call ends thinking that was never closed.
            end = kinds.index(Markup.CALL, start)
            return _spelled(lexemes[start:end]), end
        return _spelled(lexemes[start:]), None

    def _was_begun(self, prompt_tail: Sequence[int]) -> bool:
        """Whether the prompt itself opens thinking: only where the client began the reply (M13)."""
        tail = list(prompt_tail)
        if tail[-len(self._generation) :] == self._generation:
            return False
        turns = [at for at, token in enumerate(tail) if token == self._opens]
        said = self._lexemes(tail[turns[-1] + 1 :] if turns else tail)
        marks = [one.markup for one in said if one.markup in (Markup.THINK, Markup.THINK_END)]
        return marks[-1:] == [Markup.THINK]

    def _lexemes(self, output: Sequence[int]) -> Iterator[_Lexeme]:
        run: list[int] = []
        at = 0
        for at, token in enumerate(output):
            if token in self._stops:
                break
            markup = self._by_id.get(token)
            if markup is None:
                run.append(token)
                continue
            yield from self._text(run, at - len(run))
            yield _Lexeme(markup, markup, at + 1)
            run = []
        else:
            at = len(output)
        yield from self._text(run, at - len(run))

    def _text(self, run: list[int], start: int) -> Iterator[_Lexeme]:
        if not run:
            return
        text = self._tokens.decode(run)
        done = 0
        for found in self._by_text.finditer(text) if self._by_text else ():
            if found.start() > done:
                yield _Lexeme(None, text[done : found.start()], start)
            yield _Lexeme(Markup(found[0]), found[0], start + self._reach(run, text, found.end()))
            done = found.end()
        if done < len(text):
            yield _Lexeme(None, text[done:], start + len(run))

    def _reach(self, run: list[int], text: str, end: int) -> int:
        """How many ids of a run it takes to spell the text up to `end`."""
        low, high = 1, len(run)
        while low < high:
            middle = (low + high) // 2
            if self._tokens.decode(run[:middle])[:end] == text[:end]:
                high = middle
            else:
                low = middle + 1
        return low


def _spelled(lexemes: Sequence[_Lexeme]) -> str:
    return "".join(one.text for one in lexemes)


def _content(lexemes: list[_Lexeme]) -> tuple[str, list[ParsedCall]]:
    """Text, malformed calls included, and the calls that are well-formed."""
    text: list[str] = []
    calls: list[ParsedCall] = []
    at = 0
    while at < len(lexemes):
        if lexemes[at].markup is not Markup.CALL:
            text.append(lexemes[at].text)
            at += 1
            continue
        ends = [k for k in range(at, len(lexemes)) if lexemes[k].markup is Markup.CALL_END]
        call, end = _call(lexemes, at, ends)
        if call is None:
            text.append(_spelled(lexemes[at:end]))
        else:
            calls.append(call)
        at = end
    return "".join(text), calls


def _call(lexemes: list[_Lexeme], at: int, ends: list[int]) -> tuple[ParsedCall | None, int]:
    """The call that opens at `at`, and the lexeme after it or after what was meant as one."""
    for end in ends[:MOST_ENDS]:
        read = read_call(_spelled(lexemes[at + 1 : end]))
        if read is not None:
            name, arguments = read
            reach = lexemes[end].end
            return ParsedCall(name=name, arguments=arguments, native_id=None, end=reach), end + 1
    return None, ends[0] + 1 if ends else len(lexemes)
