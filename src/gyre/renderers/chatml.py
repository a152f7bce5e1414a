"""ChatML for models that no package knows: one closed turn per message, tools as Hermes does.

Rule 1: a message's ids depend on nothing after it, so every prompt is a prefix of the next.
Rule 2: thinking stays in history, and so does the empty thinking of a model told not to think.
"""

import json
from collections.abc import Iterator, Sequence

from gyre.renderers.reading import Markup, Reader
from gyre.renderers.tokens import PackageTokenizer
from gyre.renderers.tool_calls import write_call
from gyre.types.conversation import Message, Tool
from gyre.types.errors import ConfigError, RequestError
from gyre.types.ports import GENERATION, PREFACE, Continuation, ParsedReply, RenderedTokens

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
            message = f"{tokens.name_or_path}: ChatML needs the token {missing[0]}"
            raise ConfigError(message)
        self._tokens = tokens
        self._special = {text: tokens.added[text] for text in Markup if text in tokens.added}
        self._opens, self._closes = self._special[Markup.OPENS], self._special[Markup.CLOSES]
        ends = [self._closes, tokens.added.get(ENDS_TEXT), tokens.eos_token_id]
        self._stops = tuple(dict.fromkeys(end for end in ends if end is not None))
        self._name = "chatml"
        self._unthought: tuple[str, ...] = ()
        if enable_thinking is False:
            self._name += " enable_thinking=false"
            self._unthought = (Markup.THINK, "\n\n", Markup.THINK_END, "\n\n")
        self._newline = tokens.plain("\n")
        self._header = [self._opens, *tokens.plain("assistant\n")]
        self._generation = [*self._header, *self._ids(*self._unthought)]
        self._reader = Reader(tokens, self._stops, opens=self._opens, generation=self._generation)

    @property
    def name(self) -> str:
        return self._name

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stops

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> RenderedTokens:
        if not messages:
            message = "messages: expected at least one message, found none"
            raise RequestError(message)
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
        if any(stop in output[:-1] for stop in self._stops):
            # The engine ran past a stop: no turn goes on after its end.
            return None
        ids: list[int] = []
        stopped = bool(output) and output[-1] in self._stops
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
