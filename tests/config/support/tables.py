"""A run file as plain tables, small and right, and ways to read it."""

from collections.abc import Iterator
from typing import Any

from gyre.config.loader import LoadedConfig, loaded
from gyre.config.settings import Section, settings
from gyre.config.settings import tables as known_tables


def tables(**changes: Any) -> dict[str, Any]:
    """The least that a run file must say; a table of None is left out."""
    whole: dict[str, Any] = {
        "model": {"name": "tiny"},
        "schedule": {"groups_per_batch": 4, "executions_per_group": 4},
        "cells": {"count": 2, "capacity": 8},
        "tasks": {"kind": "folder", "path": "tasks"},
        "harness": {"argv": ["agent"]},
    }
    return {name: one for name, one in (whole | changes).items() if one is not None}


def read(*overrides: str, **changes: Any) -> LoadedConfig:
    return loaded("run.toml", tables(**changes), overrides)


def mistakes(*overrides: str, **changes: Any) -> list[str]:
    return list(read(*overrides, **changes).mistakes)


def sections() -> Iterator[tuple[str, Section]]:
    """Every table of a run file, the inner ones included, with its path."""
    waiting = list(known_tables().items())
    while waiting:
        path, table = waiting.pop(0)
        for section in table.sections:
            yield path, section
            waiting += [
                (f"{path}.{name}", one) for name, one in settings(section).items() if one.sections
            ]
