"""Sections as pydantic models, which check plain tables, and as a JSON Schema for editors."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from gyre.config.diagnostics import InvalidValue, Place
from gyre.config.presets import PRESETS
from gyre.config.run_config import RunConfig
from gyre.config.sections import Bounds, NonEmpty
from gyre.config.settings import (
    PRESET,
    PRESET_SAYS,
    Section,
    Setting,
    is_optional,
    marks_of,
    parts_of,
    plain_parts,
    sentence_of,
    settings,
    tables,
    tag_of,
)

DRAFT = "http://json-schema.org/draft-07/schema#"
"""One that taplo reads; it drops what stands beside a reference, so the schema has none."""


def made(table: Setting, found: Any) -> tuple[Any | None, list[InvalidValue]]:
    """The section that a plain value describes, or everything that is wrong with it."""
    try:
        holder = _holder(table.name).model_validate({table.name: found})
    except ValidationError as error:
        return None, list(_refusals(table, found, error))
    return _section(getattr(holder, table.name), table), []


def json_schema() -> dict[str, Any]:
    """What an editor needs to complete, explain and check a run file."""
    found = _model(RunConfig).model_json_schema(schema_generator=_Generator)
    parts = found.pop("$defs")
    named = {"type": "string", "enum": list(PRESETS), "description": PRESET_SAYS}
    found["properties"] = {PRESET: named} | found["properties"]
    return {"$schema": DRAFT, **_inlined(found, parts), "title": "A run of Gyre"}


# Models

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
_MODELS: dict[Section, type[BaseModel]] = {}


def _model(section: Section) -> type[BaseModel]:
    if section not in _MODELS:
        keys: dict[str, Any] = {
            name: (_typed(one), _field(one)) for name, one in settings(section).items()
        }
        _MODELS[section] = create_model(
            section.__name__, __config__=_STRICT, __doc__=sentence_of(section), **keys
        )
    return _MODELS[section]


@cache
def _holder(name: str) -> type[BaseModel]:
    """A model of one table alone, so that the others may be wrong."""
    key: dict[str, Any] = {name: (_typed(tables()[name]), ...)}
    return create_model(name, __config__=_STRICT, **key)


def _field(setting: Setting) -> Any:
    says = setting.says or None
    if setting.is_required:
        return Field(description=says)
    # A table that is left out gets its defaults from its section, key by key.
    return Field(default=None if setting.sections else setting.default, description=says)


def _typed(setting: Setting) -> Any:
    parts: list[Any] = [_model(section) for section in setting.sections]
    if len(parts) > 1:
        typed: Any = Annotated[Union[tuple(parts)], Field(discriminator="kind")]  # noqa: UP007
    elif parts:
        typed = parts[0]
    else:
        typed = Union[tuple(_bounded(part) for part in parts_of(setting.type))]  # noqa: UP007
    return typed | None if is_optional(setting.type) else typed


def _bounded(annotation: Any) -> Any:
    (plain,) = plain_parts(annotation)
    limits: dict[str, Any] = {}
    if get_origin(plain) is tuple:
        # A list of TOML becomes a tuple; its items stay strict.
        limits["strict"] = False
        plain = tuple.__class_getitem__((_bounded(get_args(plain)[0]), ...))
    for mark in marks_of(annotation):
        match mark:
            case NonEmpty():
                limits["min_length"] = 1
            case Bounds(least=least, above=above, most=most, below=below):
                named = {"ge": least, "gt": above, "le": most, "lt": below}
                limits |= {name: value for name, value in named.items() if value is not None}
    return Annotated[plain, Field(**limits)] if limits else plain


def _section(value: Any, setting: Setting) -> Any:
    """The frozen section; what was not given has the section's own default."""
    if not isinstance(value, BaseModel):
        return value
    (section,) = [candidate for candidate in setting.sections if _model(candidate) is type(value)]
    return section(
        **{
            name: _section(getattr(value, name), settings(section)[name])
            for name in value.model_fields_set
        }
    )


# What pydantic refuses, in our words


def _refusals(table: Setting, found: Any, error: ValidationError) -> Iterator[InvalidValue]:
    seen: set[Place] = set()
    for detail in error.errors(include_url=False, include_context=False):
        refused = _refusal(table, found, detail["type"], detail["loc"][1:])
        # A value that fits no alternative is refused by each of them.
        if refused.place not in seen:
            seen.add(refused.place)
            yield refused


def _refusal(table: Setting, found: Any, kind: str, loc: Place) -> InvalidValue:
    """The alternatives that pydantic names on the way are left out of the place."""
    setting, value, section = table, found, None
    place: Place = (table.name,)
    rest = list(loc)
    while rest and setting.sections:
        section = _taken(setting, rest)
        if not rest:
            break
        name = str(rest.pop(0))
        place += (name,)
        if kind == "extra_forbidden" and not rest:
            return InvalidValue(
                why="unknown", place=place, setting=None, section=section, found=value[name]
            )
        setting = settings(section)[name]
        if kind == "missing" and not rest:
            return InvalidValue(
                why="missing", place=place, setting=setting, section=section, found=None
            )
        value = value[name]
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        is_given = kind == "union_tag_invalid"
        return InvalidValue(
            why="wrong" if is_given else "missing",
            place=(*place, "kind"),
            setting=_any_kind(setting),
            section=section,
            found=value["kind"] if is_given else None,
        )
    outside = place
    for step in rest:
        # Beyond positions and keys these are names of alternatives of a plain value.
        is_position = isinstance(value, list) and isinstance(step, int)
        if is_position or (isinstance(value, dict) and step in value):
            place += (step,)
            value = value[step]
    return InvalidValue(
        why="wrong",
        place=place,
        setting=setting,
        section=section,
        found=value,
        is_inside=place != outside,
    )


def _taken(setting: Setting, rest: list[str | int]) -> Section:
    """The table that the next steps lead into; where there are several its kind is a step."""
    if len(setting.sections) == 1:
        return setting.sections[0]
    kind = rest.pop(0)
    (section,) = [candidate for candidate in setting.sections if tag_of(candidate) == kind]
    return section


def _any_kind(setting: Setting) -> Setting:
    """The key that tells the alternatives of a setting apart, with all that it may be."""
    kinds = tuple(str(tag_of(section)) for section in setting.sections)
    first = settings(setting.sections[0])["kind"]
    return replace(first, type=Literal.__getitem__(kinds), says="")


# JSON Schema


class _Generator(GenerateJsonSchema):
    """TOML has no null: what may be left out is left out."""

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])


def _inlined(schema: Any, parts: Mapping[str, Any]) -> Any:
    """Without references, without names that repeat the keys, without null."""
    match schema:
        case {"$ref": str(name), **beside}:
            whole = {**parts[name.rpartition("/")[2]], **beside}
            return _inlined(whole, parts)
        case dict():
            kept = {
                key: value
                for key, value in schema.items()
                if key != "discriminator"
                and (key, value) != ("default", None)
                # A key of a run file might be called so, and has a table where these have text.
                and not (key == "title" and isinstance(value, str))
            }
            if isinstance(kept.get("const"), str):
                kept["enum"] = [kept.pop("const")]
            return {key: _inlined(value, parts) for key, value in kept.items()}
        case list():
            return [_inlined(item, parts) for item in schema]
        case _:
            return schema
