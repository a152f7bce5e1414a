"""Values beside a file: spelled as in TOML, or as plain text where nothing else can be meant."""

import pytest

from gyre.config.settings import overridden

TABLES = {"cells": {"count": 4}, "harness": {"env": {"A": "b"}}, "odd": 3}


@pytest.mark.parametrize(
    ("text", "section", "expected"),
    [
        ("cells.count=8", "cells", {"count": 8}),
        ("cells.standalone=[4, 4]", "cells", {"count": 4, "standalone": [4, 4]}),
        ("schedule.streaming=false", "schedule", {"streaming": False}),
        ("schedule.placement=async", "schedule", {"placement": "async"}),
        ('schedule.placement="async"', "schedule", {"placement": "async"}),
        ("run.name=12", "run", {"name": "12"}),
        ("run.name=true", "run", {"name": "true"}),
        ("run.name=2026-11-16", "run", {"name": "2026-11-16"}),
        ("run.name=a = b", "run", {"name": "a = b"}),
        ("run.name='12'", "run", {"name": "12"}),
        ("run.seed=1\nother=2", "run", {"seed": "1\nother=2"}),
        ("run.seed=soon", "run", {"seed": "soon"}),
        ("draw.max_trajectories=all", "draw", {"max_trajectories": "all"}),
        ("draw.max_trajectories=3", "draw", {"max_trajectories": 3}),
        ("harness.env.A=1", "harness", {"env": {"A": "1"}}),
        ("harness.env.B=2", "harness", {"env": {"A": "b", "B": "2"}}),
        ("evaluation.tasks.path=3", "evaluation", {"tasks": {"path": "3"}}),
        ('tasks={kind="jsonl", path="a"}', "tasks", {"kind": "jsonl", "path": "a"}),
        ("cells.count=", "cells", {}),
        ('run.name=""', "run", {"name": ""}),
        ("nobody.knows=3", "nobody", {"knows": 3}),
    ],
)
def test_values_take_the_place_of_the_file_s(text, section, expected):
    found = overridden(TABLES, [text])

    assert (expected, ()) == (found.tables[section], found.mistakes)
    assert {tuple(text.split("=")[0].split("."))} == found.places
    assert {"cells": {"count": 4}, "harness": {"env": {"A": "b"}}, "odd": 3} == TABLES


def test_the_last_of_two_counts():
    assert {"count": 3} == overridden(TABLES, ["cells.count=2", "cells.count=3"]).tables["cells"]


def test_every_mistake_is_named_and_the_rest_holds():
    given = ["cells", "=3", "cells.=3", ".x=3", "odd.x=3", 'run.name="a', "run.name=\udcff"]
    found = overridden(TABLES, [*given, "cells.count=5"])

    assert (
        "cells: expected section.key=value",
        "=3: expected section.key=value",
        "cells.=3: expected section.key=value",
        ".x=3: expected section.key=value",
        "odd.x=3: odd is no table",
        'run.name="a: a quote that does not end',
        "run.name=\\udcff: expected text in UTF-8",
    ) == found.mistakes
    assert {("cells", "count")} == found.places
    assert 5 == found.tables["cells"]["count"]
