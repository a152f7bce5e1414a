"""ChatML for models that no package knows: one closed turn per message, tools as Hermes does.

Rule 1: a message's ids depend on nothing after it, so every prompt is a prefix of the next.
Rule 2: thinking stays in history, and so does the empty thinking of a model that shall not think.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gyre.renderers.tokenizer import PackageTokenizer
from gyre.renderers.tool_calls import read_call, write_call
from gyre.types.conversation import Message, Tool
from gyre.types.errors import ConfigError, RequestError
from gyre.types.protocols import (
    GENERATION,
    PREFACE,
    Continuation,
    ParsedCall,
    ParsedReply,
    RenderedTokens,
)

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
        think, think_end = (self._tokens.added.get(mark) for mark in _READ[:2])
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
        kinds = [lexeme.markup for lexeme in lexemes]
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
        marks = [
            lexeme.markup for lexeme in said if lexeme.markup in (Markup.THINK, Markup.THINK_END)
        ]
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
    return "".join(lexeme.text for lexeme in lexemes)


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


ENDS_TEXT = "<|endoftext|>"

_TOOLS = (
    "# Tools\n\nYou may call functions to help with the request. Their signatures, one per line:\n"
    "<tools>"
)
_HOW = "\n</tools>\n\nTo call a function, write its name and arguments as JSON between tags:\n"
_EXAMPLE = '\n{"name": "function-name", "arguments": {"argument-name": "value"}}\n'


class ChatML:
    """ChatML over any byte-level tokenizer, whether or not it has tokens for the markup inside."""

    keeps_thinking = True

    def __init__(self, tokens: PackageTokenizer, *, enable_thinking: bool | None = None) -> None:
        missing = [text for text in (Markup.OPENS, Markup.CLOSES) if text not in tokens.added]
        if missing:
            raise ConfigError(f"{tokens.name_or_path}: ChatML needs the token {missing[0]}")
        self._tokens = tokens
        self._special = {text: tokens.added[text] for text in Markup if text in tokens.added}
        self._opens, self._closes = self._special[Markup.OPENS], self._special[Markup.CLOSES]
        ends = [self._closes, tokens.added.get(ENDS_TEXT), tokens.eos_token_id]
        self.stop_ids = tuple(dict.fromkeys(end for end in ends if end is not None))
        self.name = "chatml"
        self._unthought: tuple[str, ...] = ()
        if enable_thinking is False:
            self.name += " enable_thinking=false"
            self._unthought = (Markup.THINK, "\n\n", Markup.THINK_END, "\n\n")
        self._newline = tokens.plain("\n")
        self._header = [self._opens, *tokens.plain("assistant\n")]
        self._generation = [*self._header, *self._ids(*self._unthought)]
        self._reader = Reader(tokens, self.stop_ids, opens=self._opens, generation=self._generation)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> RenderedTokens:
        if not messages:
            raise RequestError("messages: expected at least one message, found none")
        ids: list[int] = []
        owners: list[int] = []
        rest = list(enumerate(messages))
        if tools:
            leads = messages[0].role == "system"
            said = messages[0].text + "\n\n" if leads and messages[0].text else ""
            ids += self._turn("system\n", said, *_tool_text(tools))
            owners += [0 if leads else PREFACE] * len(ids)
            rest = rest[1:] if leads else rest
        for position, one in rest:
            turn = self._message(one)
            ids += turn
            owners += [position] * len(turn)
        ids += self._generation
        return RenderedTokens(ids=ids, owners=owners + [GENERATION] * len(self._generation))

    def bridge(
        self,
        prompt_tail: Sequence[int],
        output: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> Continuation | None:
        if not messages or any(message.role == "assistant" for message in messages):
            return None
        if any(stop in output[:-1] for stop in self.stop_ids):
            # The engine ran past a stop: no turn goes on after its end.
            return None
        ids: list[int] = []
        stopped = bool(output) and output[-1] in self.stop_ids
        thinks = self._reader.thinking_is_open(output, prompt_tail)
        if thinks:
            ids += self._ids(Markup.THINK_END)
        if thinks or not stopped:
            ids.append(self._closes)
        ids += self._newline
        owners = [0] * len(ids)
        for position, message in enumerate(messages):
            turn = self._message(message)
            ids += turn
            owners += [position] * len(turn)
        owners += [GENERATION] * len(self._generation)
        # A stop inside thinking gives way to what closes both.
        return Continuation(trim=int(thinks and stopped), ids=ids + self._generation, owners=owners)

    def parse(
        self, output: Sequence[int], prompt_tail: Sequence[int], tools: Sequence[Tool]
    ) -> ParsedReply:
        return self._reader.read(output, prompt_tail)

    def encode(self, text: str) -> list[int]:
        return self._tokens.plain(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokens.decode(ids)

    def _message(self, message: Message) -> list[int]:
        match message.role:
            case "assistant":
                # The header is what a generation prompt begins with, so it is encoded alone.
                body = self._ids(*self._assistant(message))
                return [*self._header, *body, self._closes, *self._newline]
            case "tool":
                return self._turn("tool\n", Markup.RESULT, f"\n{message.text}\n", Markup.RESULT_END)
            case role:
                return self._turn(f"{role}\n", message.text)

    def _assistant(self, message: Message) -> Iterator[str]:
        if message.reasoning:
            yield from (Markup.THINK, f"\n{message.reasoning}\n", Markup.THINK_END, "\n\n")
        else:
            yield from self._unthought
        yield message.text
        for position, call in enumerate(message.calls):
            if position or message.text:
                yield "\n"
            yield from (
                Markup.CALL,
                f"\n{write_call(call.name, call.arguments)}\n",
                Markup.CALL_END,
            )

    def _turn(self, *pieces: str) -> list[int]:
        return [self._opens, *self._ids(*pieces), self._closes, *self._newline]

    def _ids(self, *pieces: str) -> list[int]:
        """Markup as its token where there is one; all else, joined, as outside text."""
        ids: list[int] = []
        text = ""
        for piece in pieces:
            token = self._special.get(piece) if isinstance(piece, Markup) else None
            if token is None:
                text += piece
                continue
            ids += self._tokens.plain(text) if text else []
            ids.append(token)
            text = ""
        return ids + self._tokens.plain(text) if text else ids


def _tool_text(tools: Sequence[Tool]) -> Iterator[str]:
    yield _TOOLS
    for tool in tools:
        name = json.dumps(tool.name, ensure_ascii=False)
        description = json.dumps(tool.description, ensure_ascii=False)
        # The schema is JSON already, and goes in as it came.
        yield (
            f'\n{{"type": "function", "function": {{"name": {name}, "description": {description}, '
            f'"parameters": {tool.parameters}}}}}'
        )
    yield from (_HOW, Markup.CALL, _EXAMPLE, Markup.CALL_END)
