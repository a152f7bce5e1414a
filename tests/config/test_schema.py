"""The JSON Schema for editors: it says yes and no where reading the file does."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from tests.config.support.tables import sections, tables
from tests.config.support.values import loose_tables

from gyre.config.schema import json_schema, made
from gyre.config.settings import sentence_of, settings
from gyre.config.settings import tables as known_tables

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()

TYPES = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
RULES = {
    "type": lambda rule, value: TYPES[rule](value),
    "enum": lambda rule, value: value in rule,
    "minimum": lambda rule, value: value >= rule,
    "maximum": lambda rule, value: value <= rule,
    "exclusiveMinimum": lambda rule, value: value > rule,
    "exclusiveMaximum": lambda rule, value: value < rule,
    "minLength": lambda rule, value: len(value) >= rule,
    "minItems": lambda rule, value: len(value) >= rule,
    "items": lambda rule, value: all(is_valid(rule, one) for one in value),
    "required": lambda rule, value: set(rule) <= set(value),
    "properties": lambda rule, value: all(
        is_valid(rule[key], one) for key, one in value.items() if key in rule
    ),
    "oneOf": lambda rule, value: 1 == sum(is_valid(one, value) for one in rule),
    "anyOf": lambda rule, value: any(is_valid(one, value) for one in rule),
}
WORDS = {"$schema", "title", "description", "default", "additionalProperties"}


def is_valid(schema, value):
    """By the part of JSON Schema that ours uses; any other word in it is an error here."""
    assert set(schema) <= set(RULES) | WORDS
    if "type" in schema and not TYPES[schema["type"]](value):
        return False
    rest = schema.get("additionalProperties", True)
    if isinstance(value, dict) and rest is not True:
        others = [one for key, one in value.items() if key not in schema.get("properties", {})]
        if others and (rest is False or not all(is_valid(rest, one) for one in others)):
            return False
    return all(rule(schema[name], value) for name, rule in RULES.items() if name in schema)


def test_the_example_is_valid_and_a_typing_error_in_it_is_not():
    example = tomllib.loads((ROOT / "examples" / "run.toml").read_text())

    assert is_valid(SCHEMA, example)
    assert not is_valid(SCHEMA, example | {"shedule": {}})
    assert not is_valid(SCHEMA, example | {"run": {"sed": 3}})
    assert not is_valid(SCHEMA, {name: one for name, one in example.items() if name != "cells"})


@given(loose_tables())
def test_the_schema_and_the_loader_agree_table_by_table(tables):
    for name, value in tables.items():
        section, refused = made(known_tables()[name], value)

        assert is_valid(SCHEMA["properties"][name], value) == (not refused), (name, value)
        assert (section is None) == bool(refused)


def test_every_key_has_its_description_and_its_default_where_it_has_one():
    for path, section in sections():
        level = [SCHEMA]
        for key in path.split("."):
            level = [
                one
                for outer in level
                for one in outer["properties"][key].get("oneOf", [outer["properties"][key]])
            ]
        # A table that only one kind of section can be says what it is for, where it is named.
        (mine,) = [one for one in level if set(settings(section)) == set(one["properties"])][:1]
        if len(level) > 1:
            (mine,) = [one for one in level if sentence_of(section) == one["description"]]
        assert set(settings(section)) == set(mine["properties"])
        for name, setting in settings(section).items():
            found = mine["properties"][name]
            assert setting.says == found["description"]
            default = (
                list(setting.default) if isinstance(setting.default, tuple) else setting.default
            )
            assert default == found.get("default")
            assert setting.is_required == (name in mine.get("required", []))


def test_it_is_plain_json_without_references_or_nulls():
    text = json.dumps(SCHEMA, allow_nan=False)

    assert "$ref" not in text
    assert "$defs" not in text
    assert "null" not in text


@pytest.mark.parametrize("name", ["model", "schedule", "cells", "tasks", "harness"])
def test_what_must_be_there_is_required(name):
    assert name in SCHEMA["required"]
    assert not is_valid(SCHEMA, tables(**{name: None}))
    assert is_valid(SCHEMA, tables())
