"""Reports of tests: which cases passed, and what part of those that count that is.

Rule 1: what is divided by comes from the task, never from the report.
Rule 2: a test that is missing, skipped, or passed once and failed once has not passed.
"""

import json
from collections.abc import Mapping
from xml.etree import ElementTree

from gyre.types.tasks import CountedTests

NOT_PASSED = ("failure", "error", "skipped")
"""What a case of a JUnit report holds unless it passed."""
PASSED = ("passed", True)
"""What stands for a test that passed in a plain report."""


def cases_of(text: str, *, is_junit: bool) -> dict[str, bool]:
    """Whether each test passed, by name; ValueError for what is no report, or an empty one."""
    found = _junit(text) if is_junit else _plain(text)
    if not found:
        message = "the report holds no test"
        raise ValueError(message)
    return found


def share_of(cases: Mapping[str, bool], rule: CountedTests | None) -> float:
    """From 0 to 1: what part of the tests that count has passed."""
    if rule is None or ((rule.count is None or rule.count < 1) and not rule.fail_to_pass):
        message = "a report of tests needs a number of tests, or their names, in the task"
        raise ValueError(message)
    if not all(cases.get(name, False) for name in rule.pass_to_pass):
        return 0.0
    if rule.fail_to_pass:
        names = set(rule.fail_to_pass)
        return sum(cases.get(name, False) for name in names) / len(names)
    assert rule.count is not None
    # Tests that the task does not know of would only raise the score, so each takes one away.
    extra = max(0, len(cases) - rule.count)
    return max(0, sum(cases.values()) - extra) / rule.count


def _junit(text: str) -> dict[str, bool]:
    """Cases as `classname::name`, or the name alone."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        message = "expected a JUnit report without declarations"
        raise ValueError(message)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        message = f"expected a JUnit report: {error}"
        raise ValueError(message) from error
    found: dict[str, bool] = {}
    for case in root.iter("testcase"):
        name, place = case.get("name", ""), case.get("classname", "")
        passed = not any(case.find(kind) is not None for kind in NOT_PASSED)
        _add(found, f"{place}::{name}" if place else name, passed)
    return found


def _plain(text: str) -> dict[str, bool]:
    """`{"test": "passed", ...}`; any other word, and false, says that it did not."""
    found: dict[str, bool] = {}

    def gather(pairs: list[tuple[str, object]]) -> dict[str, object]:
        for name, said in pairs:
            if not isinstance(said, str | bool):
                message = f"expected passed or failed for {name!r}, found {said!r}"
                raise ValueError(message)
            _add(found, name, said in PASSED)
        return dict(pairs)

    try:
        said = json.loads(text, object_pairs_hook=gather)
    except RecursionError as error:
        message = "expected an object of tests"
        raise ValueError(message) from error
    if not isinstance(said, dict):
        message = f"expected an object of tests, found a {type(said).__name__}"
        raise ValueError(message)
    return found


def _add(found: dict[str, bool], name: str, passed: bool) -> None:
    """A test that runs more than once passes only if it always does."""
    found[name] = found.get(name, True) and passed
