"""The last run of SGLang on a GPU was of the adapters as they are, and kept every promise."""

import re
from pathlib import Path

from real.result import digest_of, newest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run tests/gpu_engines on a GPU and commit its result, or say in still_hold.md why it holds"


def still_hold(measured):
    """Digests of later adapters for which a reason stands why the result cannot have moved."""
    rows = re.findall(r"^\| (\w{16}) \| (\w{16}) \| .{40,} \|$", TABLE.read_text(), re.MULTILINE)
    return [now for then, now in rows if then == measured]


def test_the_adapters_are_those_that_sglang_was_asked_through_on_a_gpu():
    measured = newest("gpu-engines")["settings"]["adapters"]

    assert digest_of("cell-engines") in {measured, *still_hold(measured)}, AGAIN


def test_every_promise_of_the_last_run_was_kept():
    ((release, found),) = newest("gpu-engines")["samples"].items()

    assert "sglang-0.5.17" == release
    assert [] == [one["promise"] for one in found if not one["kept"]]
