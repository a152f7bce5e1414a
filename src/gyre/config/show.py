"""The tree as a run file again, every default written out, with where each value came from."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gyre.config.toml import key_of, spelled
from gyre.words.run_sections import RunConfig

Keys = tuple[str, ...]


def as_toml(config: RunConfig, origin: Callable[[Keys], str] | None = None) -> list[str]:
    """Lines of TOML that load as the same tree; what is not set stands in a comment."""
    lines: list[str] = []
    for one in fields(config):
        lines += ["", *_table((one.name,), getattr(config, one.name), origin)]
    return lines[1:]


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
