"""tokenizer.json as encoder/decoder that never lets outside text become special tokens.

Outside text is marked, so that nothing it spells is taken for a special token (T23).

Rule 1: a mark goes in after the first character of text that spells a guarded token.
Rule 2: what the text itself holds of the marks' characters is escaped, and comes back exactly.
Rule 3: a mark survives being written as a JSON or Python escape by a template.
"""

import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gyre.types.errors import ConfigError, wrap_errors

MARK = "\ufdd0"
"""A noncharacter: no text has a use for it, and no template writes it."""
KEEP = "\ufdd1"
"""After a mark: once for a mark, twice for this character, that the text itself held."""

_ESCAPED = re.compile(r"\\ufdd([01])")
_OWN = re.compile(f"[{MARK}{KEEP}]")
_MARKED = re.compile(f"{MARK}({KEEP}{{0,2}})")
_RESTORED = {"": "", KEEP: MARK, KEEP * 2: KEEP}
_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """The text with each lone surrogate, which UTF-8 cannot hold, as U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def is_marked(text: str) -> bool:
    return MARK in text or r"\ufdd" in text


def unmark(text: str) -> str:
    """The text as it was before it was marked."""
    return _MARKED.sub(lambda found: _RESTORED[found[1]], text)


class SpecialTokenMatcher:
    """Finds a set of token spellings in text, marked ones apart from unmarked ones."""

    def __init__(self, spellings: Iterable[str]) -> None:
        longest_first = sorted(spellings, key=len, reverse=True)
        self._together = "\n".join(longest_first)
        by_first: dict[str, list[str]] = {}
        for spelling in longest_first:
            by_first.setdefault(spelling[0], []).append(spelling[1:])
        # Alternatives that each begin with a literal let the regular expression skip quickly to
        # the next candidate; the longest spelling is tried first, as tokenizers do.
        self._spelled = _either(
            f"{re.escape(first)}(?={_either_of(rests)})" for first, rests in by_first.items()
        )
        self._unmarked = _either(
            f"{re.escape(first)}{_either_of(rests, alone=f'(?!{MARK}(?!{KEEP}))')}"
            for first, rests in by_first.items()
        )

    def spelled_in(self, text: str) -> bool:
        return self._spelled.search(text) is not None

    def mark(self, text: str) -> str:
        """The text with a mark inside every spelling, overlapping ones included."""
        text = encodable(text)
        if not text.isascii():
            text = _OWN.sub(lambda found: MARK + KEEP * (1 + (found[0] == KEEP)), text)
        if r"\ufdd" in text:
            text = text.replace(r"\ufdd", f"\\{MARK}ufdd")
        return self._spelled.sub(lambda found: found[0] + MARK, text)

    def unmarked(self, text: str) -> Iterator[re.Match[str]]:
        """Spellings that bear no mark: the template's own."""
        return self._unmarked.finditer(text)

    def guard(self, word: str) -> str:
        """A word that template text around it could complete to a spelling, kept from that."""
        marked = self.mark(word)
        return marked + MARK if word and word in self._together else marked


def unescape(text: str) -> str:
    """Marks that a template has written as escapes, as characters again."""
    return _ESCAPED.sub(lambda found: KEEP if found[1] == "1" else MARK, text)


def _either_of(rests: list[str], alone: str = "") -> str:
    return "(?:" + "|".join(re.escape(rest) or alone for rest in rests) + ")"


def _either(alternatives: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(alternatives) or "(?!)")


_BLANK = " \t\r\n\u2581"
"""Added tokens made of these are runs of white space: text like any other."""

REMEMBERED_CHARS = 4_000_000


class EncodingCache:
    """Texts encoded lately, with their ids.

    A template says the same few words around every message, and every conversation of every
    execution begins with the same tools and system prompt.
    """

    def __init__(self) -> None:
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._chars = 0

    def get(self, text: str) -> "array[int] | None":
        found = self._ids.get(text)
        if found is not None:
            self._ids.move_to_end(text)
        return found

    def put(self, text: str, ids: "array[int]") -> None:
        self._ids[text] = ids
        self._chars += len(text)
        while self._chars > REMEMBERED_CHARS:
            forgotten, _ = self._ids.popitem(last=False)
            self._chars -= len(forgotten)


class PackageTokenizer:
    """A tokenizer in the shape that the `renderers` package asks for, without transformers.

    `encode` takes template text, in which special tokens are spelled out and outside text is
    marked; `plain` takes outside text itself.
    """

    def __init__(self, source: str, *, name: str, eos: str | None = None) -> None:
        data = _read(source, name)
        self._whole = Tokenizer.from_str(json.dumps(data))
        added = [token for token in data["added_tokens"] if token["content"].strip(_BLANK)]
        # The library numbers added tokens itself where a file leaves gaps.
        known = self._whole.get_added_tokens_decoder().items()
        numbers = {token.content: number for number, token in known}
        self.added: Mapping[str, int] = {
            token["content"]: numbers[token["content"]] for token in added
        }
        """Added tokens, special or not, by what spells them: none of them comes from outside."""
        self.name_or_path = name
        self.unk_token_id: int | None = None
        self.eos_token = eos
        self.eos_token_id = self.added.get(eos) if eos is not None else None
        self._known = EncodingCache()
        self._flags = {token["content"]: token for token in added}
        self._marks = SpecialTokenMatcher(self.added)
        self._plain = Tokenizer.from_str(json.dumps(_without(data, self.added, numbers)))
        normalizes = any(token.get("normalized") for token in added)
        self._normalizer = self._whole.normalizer if normalizes else None

    @classmethod
    def load(cls, path: Path, *, name: str) -> "PackageTokenizer":
        """From a tokenizer.json; the end token is what a tokenizer_config.json beside it says."""
        unreadable = (OSError, UnicodeDecodeError)
        with wrap_errors(ConfigError, f"{path}: cannot be read as a tokenizer", unreadable):
            source = path.read_text(encoding="utf-8")
        return cls(source, name=name, eos=_eos(path.with_name("tokenizer_config.json")))

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Ids of template text: what it spells is special, unless it is marked."""
        if is_marked(text):
            return self._encode_marked(unescape(text))
        known = self._known.get(text)
        if known is None:
            known = array("i", self._whole.encode(text, add_special_tokens=False).ids)
            self._known.put(text, known)
        return known.tolist()

    def plain(self, text: str) -> list[int]:
        """Ids of outside text: never an added one, also where the text spells it."""
        return self._plain.encode(encodable(text), add_special_tokens=False).ids

    def mark(self, text: str) -> str:
        """Outside text as it may be joined with a template's and given to `encode`."""
        marked = self._marks.mark(text)
        if self._normalizer is not None and not text.isascii():
            # Normalising may make a spelling out of look-alikes (U+212A is a K): one mark, which
            # says nothing, keeps the text from the tokenizer that would see it.
            normal = self._normalizer.normalize_str(encodable(text))
            if self._marks.spelled_in(normal):
                marked = marked[:1] + MARK + marked[1:]
        return marked

    def mark_word(self, text: str) -> str:
        """A name or key from outside that a template puts between brackets of its own."""
        return self._marks.guard(text)

    def decode(
        self, token_ids: Sequence[int], *_: Any, skip_special_tokens: bool = False, **__: Any
    ) -> str:
        return self._whole.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        if isinstance(tokens, str):
            return self.id_of(tokens)
        return [self.id_of(token) for token in tokens]

    def id_of(self, token: str) -> int | None:
        """The id of one token, added or not; None when there is no such token."""
        return self._whole.token_to_id(token)

    def _encode_marked(self, text: str) -> list[int]:
        ids: list[int] = []
        done = 0
        for found in self._marks.unmarked(text):
            start, end = self._extent(text, found.start(), found.end(), done)
            if start < end:
                ids += self._plain_marked(text[done:start])
                ids.append(self.added[found[0]])
                done = end
        return ids + self._plain_marked(text[done:])

    def _plain_marked(self, piece: str) -> list[int]:
        return self._plain.encode(unmark(piece), add_special_tokens=False).ids if piece else []

    def _extent(self, text: str, start: int, end: int, done: int) -> tuple[int, int]:
        """What an added token takes of the text: white space beside it where its flags say so."""
        flags = self._flags[text[start:end]]
        if flags.get("single_word") and _is_inside_a_word(text, start, end):
            return start, start
        if flags.get("lstrip"):
            start = done + len(text[done:start].rstrip())
        if flags.get("rstrip"):
            end = len(text) - len(text[end:].lstrip())
        return start, end


def _read(source: str, name: str) -> dict[str, Any]:
    unreadable = (ValueError, RecursionError)
    with wrap_errors(ConfigError, f"{name}: tokenizer.json is not JSON", unreadable):
        data = json.loads(source)
    model = data.get("model") if isinstance(data, dict) else None
    # Old files do not say the type; only BPE has merges.
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise ConfigError(f"{name}: expected a tokenizer.json with a BPE model")
    # Cutting and padding are an engine's business, and a post-processor would add tokens.
    whole: dict[str, Any] = data
    return whole | {"truncation": None, "padding": None, "post_processor": None}


def _without(
    data: dict[str, Any], added: Mapping[str, int], numbers: Mapping[str, int]
) -> dict[str, Any]:
    """The same tokenizer with these added tokens out of reach, in the model's vocabulary too."""
    model = data["model"]
    ids = set(added.values())
    lost = {
        piece
        for piece, number in model["vocab"].items()
        if (number in ids or piece in added) and piece != model.get("unk_token")
    }
    vocab = {piece: number for piece, number in model["vocab"].items() if piece not in lost}
    merges = [merge for merge in model["merges"] if not lost or _stays(merge, lost)]
    kept = [token for token in data["added_tokens"] if token["content"] not in added]
    # What stays keeps its number only if the model's vocabulary has it.
    vocab |= {token["content"]: numbers[token["content"]] for token in kept}
    return data | {
        "added_tokens": kept,
        "model": model | {"vocab": vocab, "merges": merges},
    }


def _stays(merge: str | list[str], lost: set[str]) -> bool:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return not lost & {left, right, left + right}


def _is_inside_a_word(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start], text[end : end + 1]
    return any(beside.isalnum() or beside == "_" for beside in (before, after))


def _eos(config: Path) -> str | None:
    if not config.is_file():
        return None
    unreadable = (OSError, ValueError, AttributeError, RecursionError)
    with wrap_errors(ConfigError, f"{config}: expected a JSON object", unreadable):
        token = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
    return token.get("content") if isinstance(token, dict) else token
