"""Every setting with path, type, default and help; `section.key=value` overrides."""

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from gyre.config.run_config import RunConfig
from gyre.config.sections import Bounds, NonEmpty

Section: TypeAlias = type[Any]
"""A frozen dataclass of words."""

PRESET = "preset"
"""The one key of a run file that stands above its tables."""
PRESET_SAYS = "A row of the paper, whose values stand for those that the file leaves out (SPEC 9)."

_CITED = re.compile(r"\(SPEC (\d[\d., and]*)\)")
_ONE = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_MANY = {int: "whole numbers", float: "numbers", bool: "truth values", str: "texts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of a table."""

    name: str
    type: Any
    """As it is annotated, bounds included."""
    is_required: bool
    default: Any
    """None where it is required or not set."""
    says: str
    """Its sentence."""

    @property
    def sections(self) -> tuple[Section, ...]:
        """The tables that may stand here; none where the value is plain."""
        parts = plain_parts(self.type)
        return tuple(part for part in parts if isinstance(part, type) and is_dataclass(part))

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        return " or ".join(dict.fromkeys(_described(part) for part in parts_of(self.type)))

    @property
    def expected_inside(self) -> str:
        """What an item of it must be, where it is a list or a table of values."""
        (plain,) = plain_parts(self.type)
        return _described(_item_of(plain))

    @property
    def is_text(self) -> bool:
        """It can be nothing else, so that quotes say nothing."""
        return all(part is str or get_origin(part) is Literal for part in plain_parts(self.type))


def tables() -> Mapping[str, Setting]:
    """The tables of a run file, in the order they are shown."""
    return settings(RunConfig)


def settings(section: Section) -> Mapping[str, Setting]:
    """The keys of a table by name."""
    if section not in _READ:
        _READ[section] = {setting.name: setting for setting in _read(section)}
    return _READ[section]


_READ: dict[Section, Mapping[str, Setting]] = {}


def _read(section: Section) -> Iterator[Setting]:
    hints = get_type_hints(section, include_extras=True)
    docs = _docs_of(section)
    for entry in fields(section):
        default = entry.default
        if entry.default_factory is not MISSING:
            default = entry.default_factory()
        is_required = default is MISSING
        yield Setting(
            name=entry.name,
            type=hints[entry.name],
            is_required=is_required,
            default=None if is_required else default,
            says=docs.get(entry.name, ""),
        )


def sentence_of(section: Section) -> str:
    """What a table is for."""
    return _joined(inspect.getdoc(section) or "")


def tag_of(section: Section) -> str | None:
    """Its kind, where it is one of several alternatives or may become one."""
    found = settings(section).get("kind")
    choices = () if found is None else choices_of(found.type)
    return choices[0] if len(choices) == 1 else None


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The words that a value may be."""
    parts = plain_parts(annotation)
    return tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))


def parts_of(annotation: Any) -> Iterator[Any]:
    """The alternatives of a type as annotated, without None."""
    if get_origin(annotation) in (Union, UnionType):
        yield from (part for part in get_args(annotation) if part is not NoneType)
    else:
        yield annotation


def plain_parts(annotation: Any) -> Iterator[Any]:
    """The alternatives of a type, without bounds and without None."""
    for part in parts_of(annotation):
        yield get_args(part)[0] if get_origin(part) is Annotated else part


def marks_of(annotation: Any) -> tuple[Any, ...]:
    """What a type carries beside itself, such as bounds."""
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def is_optional(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation)


def setting_at(keys: Sequence[str]) -> Setting | None:
    """The setting that dotted keys lead to, under any of the alternatives on the way."""
    level, found = tables(), None
    for key in keys:
        found = level.get(key)
        if found is None:
            return None
        level = {k: v for section in reversed(found.sections) for k, v in settings(section).items()}
    return found


def is_text_at(keys: Sequence[str]) -> bool:
    """Whether nothing but text can stand there, the values of a table of texts included."""
    if found := setting_at(keys):
        return found.is_text
    above = setting_at(keys[:-1])
    return above is not None and any(
        get_origin(part) is Mapping and get_args(part)[1] is str for part in plain_parts(above.type)
    )


def cited(setting: Setting, section: Section | None) -> str | None:
    """The parts of the specification that its sentence names, else its table's."""
    for text in (setting.says, "" if section is None else sentence_of(section)):
        if found := _CITED.findall(text):
            return ", ".join(found)
    return None


def _described(annotation: Any) -> str:
    (plain,) = plain_parts(annotation)
    marks, origin = marks_of(annotation), get_origin(plain)
    if is_dataclass(plain):
        return "a table"
    if origin is Literal:
        words = [f'"{word}"' for word in get_args(plain)]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if origin is tuple:
        some = "one or more " if NonEmpty() in marks else ""
        return f"a list of {some}{_many(_item_of(plain))}"
    if origin is Mapping:
        return f"a table of {_many(_item_of(plain))}"
    if NonEmpty() in marks:
        return "text that is not empty"
    return " ".join([_ONE[plain], *_bounds(annotation)])


def _many(annotation: Any) -> str:
    (plain,) = plain_parts(annotation)
    if get_origin(plain) is Literal:
        return "any of " + ", ".join(f'"{word}"' for word in get_args(plain))
    return " ".join([_MANY[plain], *_bounds(annotation)])


def _item_of(plain: Any) -> Any:
    """The type of what is in a list or a table of values."""
    return get_args(plain)[0 if get_origin(plain) is tuple else 1]


def _bounds(annotation: Any) -> list[str]:
    return [_bounded(mark) for mark in marks_of(annotation) if isinstance(mark, Bounds)]


def _bounded(bounds: Bounds) -> str:
    said = {
        "of at least {}": bounds.least,
        "above {}": bounds.above,
        "at most {}": bounds.most,
        "below {}": bounds.below,
    }
    return " and ".join(text.format(value) for text, value in said.items() if value is not None)


def _docs_of(section: Section) -> dict[str, str]:
    """The string below each field; the interpreter drops them, so they come from the source."""
    for node in _source(section.__module__).body:
        if isinstance(node, ast.ClassDef) and node.name == section.__name__:
            return dict(_below(node))
    return {}


@cache
def _source(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def _below(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one, following in zip(node.body, node.body[1:], strict=False):
        match one, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(doc))
            ):
                yield name, _joined(doc)


def _joined(text: str) -> str:
    return " ".join(text.split())


Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideResult:
    """Plain tables with values replaced, where that was, and what could not be."""

    tables: dict[str, Any]
    places: frozenset[Keys]
    mistakes: tuple[str, ...]


class _Leave:
    """The file's value is left out."""


def overridden(tables: Mapping[str, Any], overrides: Iterable[str]) -> OverrideResult:
    """The given tables stay as they are; of two values for one key the later one counts."""
    changed = _copied(tables)
    places: set[Keys] = set()
    mistakes = []
    for text in overrides:
        path, is_set, value = text.partition("=")
        keys = tuple(path.strip().split("."))
        if not _is_utf8(text):
            printable = text.encode(errors="backslashreplace").decode()
            mistakes.append(f"{printable}: expected text in UTF-8")
        elif not is_set or not all(keys):
            mistakes.append(f"{text}: expected section.key=value")
        elif problem := _put(changed, keys, value):
            mistakes.append(f"{text}: {problem}")
        else:
            places.add(keys)
    return OverrideResult(tables=changed, places=frozenset(places), mistakes=tuple(mistakes))


def _put(tables: dict[str, Any], keys: Keys, text: str) -> str | None:
    """What is wrong, or None when the value is in its place."""
    level = tables
    for depth, key in enumerate(keys[:-1], start=1):
        level = level.setdefault(key, {})
        if not isinstance(level, dict):
            return f"{'.'.join(keys[:depth])} is no table"
    value = _value(text, is_text=is_text_at(keys))
    if isinstance(value, str) and text.lstrip()[:1] in ('"', "'") and value == text:
        return "a quote that does not end"
    if isinstance(value, _Leave):
        level.pop(keys[-1], None)
    else:
        level[keys[-1]] = value
    return None


def _value(text: str, *, is_text: bool) -> Any:
    """As TOML spells it; what is no TOML is text, and so is all that can only be text."""
    if not text.strip():
        return _Leave()
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = found["value"]
    is_plain = len(found) == 1 and (isinstance(value, str) or not is_text)
    return value if is_plain else text


def _is_utf8(text: str) -> bool:
    """The shell passes other bytes on as halves of characters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _copied(value: Any) -> Any:
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, Mapping) else value
