"""The last run of SGLang on a GPU was of the adapters as they are, and kept every promise."""

from pathlib import Path

from real.result import digest_of
from tests.hand_run_results import holding, newest

TABLE = Path(__file__).with_name("still_hold.md")
AGAIN = "run it on a GPU and commit its result, or say in still_hold.md why it holds"


def test_the_adapters_are_those_that_sglang_was_asked_through_on_a_gpu():
    measured = newest("gpu-engines")["settings"]["adapters"]

    assert digest_of("cell-engines") in holding(measured, TABLE), AGAIN


def test_every_promise_of_the_last_run_was_kept():
    ((release, found),) = newest("gpu-engines")["samples"].items()

    assert "sglang-0.5.17" == release
    assert [] == [one["promise"] for one in found if not one["kept"]]
