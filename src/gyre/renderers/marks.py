"""Outside text is marked, so that nothing it spells is taken for a special token (T23).

Rule 1: a mark goes in after the first character of whatever spells a guarded token.
Rule 2: what the text itself holds of the marks' characters is escaped, and comes back exactly.
Rule 3: a mark survives being written as a JSON or Python escape by a template.
"""

import re
from collections.abc import Iterable, Iterator

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
