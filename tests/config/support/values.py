"""Random tables of a run file, made from what its keys say they may be."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st

from gyre.config.sections import Bounds, NonEmpty
from gyre.config.settings import Setting, marks_of, parts_of, plain_parts, settings
from gyre.config.settings import tables as known_tables

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
"""All that a text may hold."""

WRONG = st.one_of(
    st.booleans(),
    st.integers(-3, 70_000),
    st.floats(-2, 2, allow_nan=False),
    st.sampled_from(["", "all", "folder", "async", "text"]),
    st.lists(st.integers(-1, 2) | st.just("a"), max_size=2),
    st.dictionaries(st.sampled_from(["kind", "path", "x"]), st.just("folder"), max_size=2),
)
"""Plain values of any kind, some of which fit some keys."""


def run_tables() -> st.SearchStrategy[dict[str, Any]]:
    """Tables whose values are right one by one."""
    return st.fixed_dictionaries({name: _value(one) for name, one in known_tables().items()})


def loose_tables() -> st.SearchStrategy[dict[str, Any]]:
    """Tables with all their keys, of which any value may be of another kind, or missing."""
    return st.fixed_dictionaries(
        {
            name: st.one_of([_table(section, loose=True) for section in one.sections] + [WRONG])
            for name, one in known_tables().items()
        }
    )


def _table(section: type[Any], *, loose: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    must, may = {}, {}
    for name, one in settings(section).items():
        is_kind = name == "kind" and not loose
        value = _value(one) | WRONG if loose else _value(one)
        (must if one.is_required or is_kind else may)[name] = value
    return st.fixed_dictionaries(must, optional=may)


def _value(setting: Setting) -> st.SearchStrategy[Any]:
    if setting.sections:
        return st.one_of([_table(section) for section in setting.sections])
    return st.one_of([_part(one) for one in parts_of(setting.type)])


def _part(annotation: Any) -> st.SearchStrategy[Any]:
    (plain,) = plain_parts(annotation)
    marks = marks_of(annotation)
    least = int(NonEmpty() in marks)
    origin = get_origin(plain)
    if origin is Literal:
        return st.sampled_from(get_args(plain))
    if origin is tuple:
        return st.lists(_part(get_args(plain)[0]), min_size=least, max_size=3)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=5), st.text(LETTERS, max_size=5), max_size=3)
    if plain is str:
        return st.text(LETTERS, min_size=least, max_size=8)
    if plain is bool:
        return st.booleans()
    bounds = next((one for one in marks if isinstance(one, Bounds)), Bounds())
    return _number(plain, bounds)


def _number(kind: type, bounds: Bounds) -> st.SearchStrategy[Any]:
    if kind is int:
        most = 2**63 - 1 if bounds.most is None else bounds.most
        return st.integers(bounds.least, most)
    low = bounds.least if bounds.above is None else bounds.above
    high = bounds.most if bounds.below is None else bounds.below
    return st.floats(
        low,
        high,
        exclude_min=bounds.above is not None,
        exclude_max=bounds.below is not None,
        allow_nan=False,
        allow_infinity=False,
    )
