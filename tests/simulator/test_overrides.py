"""Values beside a file: spelled as in TOML or as plain words, with every mistake named."""

import pytest

from gyre.simulator.overrides import overridden

TABLES = {"seed": 1, "cells": {"count": 4}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cells.count=8", {"seed": 1, "cells": {"count": 8}}),
        ("cells.standalone=[4, 4]", {"seed": 1, "cells": {"count": 4, "standalone": [4, 4]}}),
        ("schedule.placement=async", {**TABLES, "schedule": {"placement": "async"}}),
        ('schedule.placement="async"', {**TABLES, "schedule": {"placement": "async"}}),
        ("schedule.streaming=false", {**TABLES, "schedule": {"streaming": False}}),
        ("seed=7", {"seed": 7, "cells": {"count": 4}}),
        ("name=a = b", {**TABLES, "name": "a = b"}),
        ("seed=1\nother=2", {"seed": "1\nother=2", "cells": {"count": 4}}),
    ],
)
def test_values_take_the_place_of_the_file_s(text, expected):
    found = overridden(TABLES, [text])

    assert (expected, ()) == (found.tables, found.mistakes)
    assert {"seed": 1, "cells": {"count": 4}} == TABLES


def test_the_last_of_two_counts():
    assert {"count": 3} == overridden(TABLES, ["cells.count=2", "cells.count=3"]).tables["cells"]


def test_every_mistake_is_named():
    found = overridden(TABLES, ["cells", "=3", "cells.=3", "seed.x=3", "cells.count=5"])

    assert (
        "cells: expected section.key=value",
        "=3: expected section.key=value",
        "cells.=3: expected section.key=value",
        "seed.x=3: seed is no table",
    ) == found.mistakes
    assert 5 == found.tables["cells"]["count"]
