"""A run file with values given beside it becomes one frozen tree, or a list of all its mistakes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.config.diagnostics import Place, path_of, said, shown, unknown
from gyre.config.presets import filled
from gyre.config.run_config import RunConfig
from gyre.config.schema import made
from gyre.config.settings import Keys, overridden, tables
from gyre.config.toml import key_of, read
from gyre.config.validation import clashes
from gyre.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """What a file and overrides say, as far as it can be."""

    where: str
    sections: Mapping[str, Any]
    """The tables without a mistake, as frozen sections by name."""
    mistakes: tuple[str, ...]
    given: frozenset[Keys]
    """Keys that the file gives."""
    overridden: frozenset[Keys]
    """Keys that were given beside it."""
    preset: str | None = None
    """The row of the paper that fills in what is left out."""
    from_preset: Mapping[Keys, str] = field(default_factory=dict)
    """Its values' origins."""
    besides_preset: tuple[str, ...] = ()
    """Paths at which another schedule than the preset's is asked for."""

    @property
    def config(self) -> RunConfig:
        """The whole tree, where there is no mistake."""
        if self.mistakes:
            raise self.refusal()
        return RunConfig(**self.sections)

    def refusal(self, more: Sequence[str] = ()) -> ConfigError:
        """Every mistake, those that others found included."""
        mistakes = [*self.mistakes, *more]
        many = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        return ConfigError("\n  ".join([f"{self.where}: {many}", *mistakes]))

    @property
    def schedule(self) -> str:
        """Whose it is, in words."""
        besides = " and ".join(self.besides_preset)
        own = f", but for {besides}" if besides else ""
        return "the file's own" if self.preset is None else f"preset {self.preset}{own}"

    def origin(self, keys: Keys) -> str:
        """Where the value of a key comes from: override, file, preset or default."""
        if keys in self.from_preset:
            return self.from_preset[keys]
        above = [keys[:depth] for depth in range(1, len(keys) + 1)]
        if any(path in self.overridden for path in above):
            return "override"
        return "file" if keys in self.given else "default"


def load(path: Path, overrides: Iterable[str] = ()) -> LoadedConfig:
    """Only a file that is no TOML is refused at once; everything else is listed."""
    return loaded(str(path), read(path, expected="a run file"), overrides)


def loaded(where: str, found: Mapping[str, Any], overrides: Iterable[str] = ()) -> LoadedConfig:
    """The same for plain tables."""
    changed = overridden(found, overrides)
    whole = filled(changed.tables)
    mistakes = [*changed.mistakes, *whole.mistakes]
    mistakes += [unknown(key_of(name), None) for name in whole.tables if name not in tables()]
    sections = {}
    for name, table in tables().items():
        # A table that is left out is an empty one, so that what it must have is named.
        value = whole.tables.get(name, {})
        if unusable := [*_unusable(value, (name,))]:
            mistakes += unusable
            continue
        section, refused = made(table, value)
        mistakes += [said(value) for value in refused]
        if not refused:
            sections[name] = section
    mistakes += clashes(sections)
    return LoadedConfig(
        where=where,
        sections=sections,
        mistakes=tuple(mistakes),
        given=frozenset(_leaves(found)),
        overridden=changed.places,
        preset=whole.preset,
        from_preset=whole.origins,
        besides_preset=whole.besides,
    )


def _unusable(value: Any, place: Place) -> Iterator[str]:
    """Whole numbers that TOML does not promise, and texts that no file or program can be given."""
    if isinstance(value, Mapping | list):
        inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, one in inside:
            yield from _unusable(one, (*place, key))
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield f"{path_of(place)}: expected a number of 64 bits, found {shown(value)}"
    elif isinstance(value, str) and "\0" in value:
        yield f"{path_of(place)}: expected text without a null character, found {shown(value)}"


def _leaves(found: Mapping[str, Any], above: Keys = ()) -> Iterator[Keys]:
    for key, value in found.items():
        yield (*above, key)
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, key))
