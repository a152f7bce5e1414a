"""The tree as a run file again, every default written out, and flat for those who compare runs."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gyre.config.run_sections import RunConfig
from gyre.config.toml import key_of, spelled

Keys = tuple[str, ...]

_NAME = r"[\w-]*(?:key|token|secret|password)"
_NAMED = re.compile(rf"(?i)^-*{_NAME}$")
"""An argument whose value is a secret."""
_SET = re.compile(rf"(?i)({_NAME}\s*[=:]\s*|-{_NAME}\s+|\b(?:bearer|basic)\s+)[^&\s]+")
"""Where one stands behind its name within a text, as in a command or a header."""
_LOGIN = re.compile(r"(?<=://)(?:[^/@\s]*:(?!\d+[/?#])\S*|[^/@\s]+)@")
"""A password may hold anything, and what follows a port is a path."""
HIDDEN = "..."


def as_toml(config: RunConfig, origin: Callable[[Keys], str] | None = None) -> list[str]:
    """Lines of TOML that load as the same tree; what is not set stands in a comment."""
    lines: list[str] = []
    for one in fields(config):
        lines += ["", *_table((one.name,), getattr(config, one.name), origin)]
    return lines[1:]


def settings_of(config: RunConfig) -> dict[str, str | int | float | bool]:
    """Every value by its path, for others than the run: without secrets, and what is not set.

    There is no place for secrets in a run file; what looks like one is left out all the same.
    """
    return dict(_flat((), config))


def _flat(keys: Keys, value: Any) -> Iterator[tuple[str, str | int | float | bool]]:
    path = ".".join(keys)
    if is_dataclass(value) or isinstance(value, Mapping):
        is_environment = keys[-1:] == ("env",)
        for name, one in _items(value):
            yield from _flat((*keys, name), HIDDEN if is_environment else one)
    elif isinstance(value, str):
        yield path, _without_secrets(value)
    elif isinstance(value, bool | int | float):
        yield path, value
    elif value is not None:
        yield path, spelled([*_arguments(value)])


def _arguments(values: Iterable[Any]) -> Iterator[Any]:
    """Of a command; a secret may follow its name."""
    before: Any = None
    for one in values:
        is_secret = isinstance(before, str) and before[:1] == "-" and _NAMED.match(before)
        yield HIDDEN if is_secret else _without_secrets(one) if isinstance(one, str) else one
        before = one


def _without_secrets(text: str) -> str:
    return _LOGIN.sub("", _SET.sub(rf"\1{HIDDEN}", text))


def _table(keys: Keys, section: Any, origin: Callable[[Keys], str] | None) -> Iterator[str]:
    yield f"[{'.'.join(key_of(key) for key in keys)}]"
    inner = []
    for name, value in _items(section):
        at = (*keys, name)
        if is_dataclass(value) or (isinstance(value, Mapping) and value):
            inner.append((at, value))
            continue
        line = f"# {name} =" if value is None else f"{key_of(name)} = {spelled(value)}"
        yield line if origin is None else f"{line}  # {_said(origin(at), value)}"
    for at, value in inner:
        yield ""
        yield from _table(at, value, origin)


def _items(section: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(section, Mapping):
        yield from section.items()
    else:
        yield from ((one.name, getattr(section, one.name)) for one in fields(section))


def _said(origin: str, value: Any) -> str:
    return "not set" if value is None else origin
