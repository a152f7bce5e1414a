"""`gyre config explain` and the generated reference page."""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from textwrap import wrap
from typing import Any

from gyre.config.diagnostics import unknown
from gyre.config.settings import (
    PRESET,
    PRESET_SAYS,
    Section,
    Setting,
    cited,
    sentence_of,
    settings,
    tables,
    tag_of,
)
from gyre.config.toml import spelled
from gyre.types.errors import ConfigError

WIDTH = 88


def explained(name: str | None) -> list[str]:
    """All tables, one table, or one key such as `schedule.rescue_s`."""
    if name is None:
        lines = [_line(one, about(table)) for one, table in tables().items()]
        return [*lines, _line(PRESET, PRESET_SAYS)]
    if name == PRESET:
        return [f"{PRESET} = the name of a preset (not set)", f"  {PRESET_SAYS}"]
    section, setting = _found(name)
    return list(_table(name, setting) if setting.sections else _key(name, setting, section))


def _found(name: str) -> tuple[Section | None, Setting]:
    """What dotted keys lead to, and the table it is in."""
    section: Section | None = None
    first, *rest = name.split(".")
    setting = _inside(tables(), first, first, section)
    path = first
    for key in rest:
        if not setting.sections:
            raise ConfigError(f"{name}: {path} has no keys; it is {setting.expected}")
        # A key of any of the alternatives can be asked for.
        having = [section for section in setting.sections if key in settings(section)]
        section = (having or setting.sections)[0]
        path = f"{path}.{key}"
        setting = _inside(settings(section), key, path, section)
    return section, setting


def _inside(level: Mapping[str, Setting], key: str, path: str, section: Section | None) -> Setting:
    if key not in level:
        raise ConfigError(unknown(path, section))
    return level[key]


def about(table: Setting) -> str:
    """What a table is for; alternatives are joined."""
    if len(table.sections) == 1:
        return sentence_of(table.sections[0])
    return " ".join(f'"{tag_of(section)}": {sentence_of(section)}' for section in table.sections)


def default_of(setting: Setting) -> str:
    """As TOML spells it, or why there is none."""
    if setting.is_required:
        return "required"
    default: Any = setting.default
    if default is None or is_dataclass(default):
        return "not set"
    return spelled(default)


def _table(name: str, table: Setting) -> Iterator[str]:
    for number, section in enumerate(table.sections):
        if number:
            yield ""
        yield f"[{name}]"
        yield from wrap(sentence_of(section), WIDTH)
        for setting in settings(section).values():
            yield ""
            yield f"{setting.name} = {_value(setting)}"
            yield from (f"  {line}" for line in wrap(setting.says, WIDTH - 2))


def _key(name: str, setting: Setting, section: Section | None) -> Iterator[str]:
    yield f"{name} = {_value(setting)}"
    yield from (f"  {line}" for line in wrap(setting.says, WIDTH - 2))
    if (spec := cited(setting, section)) and spec not in setting.says:
        yield f"  Its table: SPEC {spec}."


def _value(setting: Setting) -> str:
    default = default_of(setting)
    state = default if default in ("required", "not set") else f"default {default}"
    return f"{setting.expected} ({state})"


def _line(name: str, text: str) -> str:
    return f"{name:<11} {text}"


def reference() -> Iterator[str]:
    """In the order of the tables; alternatives stand below each other, and so do tables within."""
    known = {section for table in tables().values() for section in table.sections}
    for name, table in tables().items():
        yield from _reference_table(name, table)
        for section in table.sections:
            for setting in settings(section).values():
                if set(setting.sections) - known:
                    yield from _reference_table(f"{name}.{setting.name}", setting)


def _reference_table(name: str, table: Setting) -> Iterator[str]:
    yield from ("", f"### [{name}]", "")
    if len(table.sections) == 1:
        yield from _keys(table.sections[0])
        return
    for number, section in enumerate(table.sections):
        if number:
            yield ""
        yield from (f'With `kind = "{tag_of(section)}"`:', "")
        yield from _keys(section)


def _keys(section: Section) -> Iterator[str]:
    yield from (
        sentence_of(section),
        "",
        "| key | value | default | what it is |",
        "|---|---|---|---|",
    )
    for setting in settings(section).values():
        default = default_of(setting)
        told = default if default in ("required", "not set") else f"`{default}`"
        if told != "required" or setting.name != "kind":
            yield f"| `{setting.name}` | {_short(setting)} | {told} | {setting.says} |".replace(
                "*", "\\*"
            )


_SHORTER = (
    ("whole numbers", "integers"),
    ("a whole number", "integer"),
    ("a number", "number"),
    (" of at least ", " ≥ "),
    (" at most ", " ≤ "),
    (" above ", " > "),
    (" below ", " < "),
    ("one of ", ""),
    ("true or false", "bool"),
    (" that is not empty", ""),
    ("one or more ", ""),
    ("a list", "list"),
    ("a table", "table"),
)


def _short(setting: Setting) -> str:
    """What a value must be, as a table has room for it."""
    text = setting.expected
    for words, sign in _SHORTER:
        text = text.replace(words, sign)
    return text
