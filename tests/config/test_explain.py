"""One table or key explained, and what happens to names that are not there."""

import pytest

from gyre.config.explain import explained, reference
from gyre.config.settings import tables
from gyre.types.errors import ConfigError


def test_all_tables_have_a_line():
    found = explained(None)

    assert [*tables(), "preset"] == [line.split()[0] for line in found]
    assert "preset = the name of a preset (not set)" == explained("preset")[0]


def test_a_key_has_its_type_its_default_its_sentence_and_its_part_of_the_spec():
    assert [
        "schedule.supply_dwell_s = a number of at least 0 (default 5.0)",
        "  tau: for how long it has been so (SPEC 2.1).",
    ] == explained("schedule.supply_dwell_s")
    assert "  Its table: SPEC 8.4." == explained("optimizer.beta1")[-1]
    assert "cells.count = a whole number of at least 1 (required)" == explained("cells.count")[0]
    assert "(not set)" in explained("engine.kv_tokens")[0]


def test_a_table_has_all_its_keys_under_each_alternative():
    found = explained("tasks")

    kinds = ("folder", "jsonl", "harbor", "deepswe", "nl2repo", "python")

    assert len(kinds) == found.count("[tasks]")
    assert [f'kind = "{kind}" (required)' for kind in kinds] == [
        line for line in found if line.startswith("kind")
    ]


def test_an_inner_table_is_explained_too():
    assert "[evaluation.tasks]" == explained("evaluation.tasks")[0]
    assert explained("evaluation.tasks.path")[0].startswith("evaluation.tasks.path = text")


def test_the_reference_has_tables_within_tables_and_each_once():
    """`[evaluation.tasks]` is as `[tasks]`, and stands there."""
    headings = [line for line in reference() if line.startswith("### ")]

    within = ["### [cells.server]", "### [evaluate.judge]"]
    assert within == [line for line in headings if "." in line]
    assert [f"### [{name}]" for name in tables()] == [
        line for line in headings if line not in within
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("schedul", "schedul: unknown table; nearest: schedule; known here: "),
        ("cells.cont", "cells.cont: unknown key; nearest: count; known here: "),
        ("cells.count.x", "cells.count.x: cells.count has no keys; it is a whole number"),
        ("", ": unknown table; known here: "),
        ("cells.", "cells.: unknown key; known here: "),
    ],
)
def test_names_that_are_not_there(name, expected):
    with pytest.raises(ConfigError) as error:
        explained(name)
    assert str(error.value).startswith(expected)
