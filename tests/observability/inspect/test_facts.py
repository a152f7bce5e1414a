"""The same execution, for programs."""

import json

from gyre.observability.inspect.tree_summary import facts
from gyre.trajectory.loading import load


def test_facts_are_plain_and_hold_every_call(errand, tmp_path):
    found = json.loads(json.dumps(facts(load(errand.write(tmp_path)))))
    third = found["nodes"][2]

    assert ("x", 11, 10, False) == (
        found["execution"],
        found["calls"],
        found["committed"],
        found["complete"],
    )
    assert list(range(1, 12)) == [node["call"] for node in found["nodes"]]
    assert (3, 2, None, "abort") == (
        third["call"],
        third["parent"],
        third["committed"],
        third["finish"],
    )
    assert (202, 6, 7) == (third["shared_tokens"], third["new_tokens"], third["output_tokens"])
    assert [{"engine": "one", "version": 3, "tokens": 7}] == third["engines"]
    assert {"12": "nobody left to answer"} == found["failures"]
    assert [13] == found["unfinished_calls"]
    assert [6, 8, 9, 10] == [one["call"] for one in found["candidates"]]
