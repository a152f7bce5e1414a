"""Evaluator output and test reports to a score.

Reports of tests: which cases passed, and what part of those that count that is.

Rule 1: what is divided by comes from the task, never from the report.
Rule 2: a test that is missing, skipped, or passed once and failed once has not passed.

What an evaluator wrote becomes a score, or the reason why it is none.

Rule 1: what is not a score is refused and never 0; a 0 that was said stays 0 (SPEC 6.3).
Rule 2: one who could not tell, by a sentinel or by leaving out what would prove it, said nothing.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, TypeGuard
from xml.etree import ElementTree

from gyre.types.outcomes import EvaluatorAnswer
from gyre.types.tasks import CountedTests, EvaluationRule

NOT_PASSED = ("failure", "error", "skipped")
"""What a case of a JUnit report holds unless it passed."""
PASSED = ("passed", True)
"""What stands for a test that passed in a plain report."""


def cases_of(text: str, *, is_junit: bool) -> dict[str, bool]:
    """Whether each test passed, by name; ValueError for what is no report, or an empty one."""
    found = _junit(text) if is_junit else _plain(text)
    if not found:
        raise ValueError("the report holds no test")
    return found


def share_of(cases: Mapping[str, bool], rule: CountedTests | None) -> float:
    """From 0 to 1: what part of the tests that count has passed."""
    if rule is None or ((rule.count is None or rule.count < 1) and not rule.fail_to_pass):
        raise ValueError("a report of tests needs a number of tests, or their names, in the task")
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
        raise ValueError("expected a JUnit report without declarations")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"expected a JUnit report: {error}") from error
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
                raise ValueError(f"expected passed or failed for {name!r}, found {said!r}")
            _add(found, name, said in PASSED)
        return dict(pairs)

    try:
        said = json.loads(text, object_pairs_hook=gather)
    except RecursionError as error:
        raise ValueError("expected an object of tests") from error
    if not isinstance(said, dict):
        raise ValueError(f"expected an object of tests, found a {type(said).__name__}")
    return found


def _add(found: dict[str, bool], name: str, passed: bool) -> None:
    """A test that runs more than once passes only if it always does."""
    found[name] = found.get(name, True) and passed


REPORTS = ("junit.xml", "tests.json")
"""Scores that are counted from a report of tests."""
PLAIN = "reward"
"""What a number that stands alone is called."""
MOST_TEXT = 200


def score_of(said: EvaluatorAnswer, evaluation: EvaluationRule) -> float:
    """The one score that was said; ValueError with the reason otherwise."""
    missing = [name for name in evaluation.evidence if name not in said.evidence]
    if missing:
        raise ValueError(f"evidence is missing: {', '.join(missing)}")
    if evaluation.score in REPORTS:
        cases = cases_of(said.text, is_junit=evaluation.score == "junit.xml")
        part = share_of(cases, evaluation.tests)
        found = evaluation.lowest + part * (evaluation.highest - evaluation.lowest)
    else:
        found = _reward(said.text, evaluation)
    return _above_baseline(found, evaluation)


def reaches(
    said: EvaluatorAnswer, evaluation: EvaluationRule, score: float, least: Mapping[str, float]
) -> bool:
    """Whether every number that is named is there and no less; a number alone is the score's."""
    if not least:
        return True
    found = None if evaluation.score in REPORTS else _read(said.text)
    if not isinstance(found, dict):
        found = dict.fromkeys((evaluation.reward_key, PLAIN), score if found is None else found)
    return all(_is_number(found.get(name)) and found[name] >= low for name, low in least.items())


def _is_number(said: object) -> TypeGuard[int | float]:
    return isinstance(said, int | float) and not isinstance(said, bool)


def _read(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError):
        return _bare_number(text)


def _reward(text: str, evaluation: EvaluationRule) -> float:
    """A number alone, or one of several by its key and behind its gate."""
    said = _read(text)
    if not isinstance(said, dict):
        if evaluation.gate is not None:
            raise ValueError(
                f"expected numbers by name, {evaluation.gate!r} among them, found {_cut(text)}"
            )
        return _score(said, evaluation, text)
    score = _score(_at(said, evaluation.reward_key), evaluation, text)
    if evaluation.gate is None:
        return score
    gate = _score(_at(said, evaluation.gate), evaluation, text)
    return score if gate >= evaluation.highest else evaluation.lowest


def _score(said: object, evaluation: EvaluationRule, text: str) -> float:
    """A finite number within bounds that is no sentinel."""
    if not _is_number(said):
        raise ValueError(f"expected a number, found {_cut(text)}")
    try:
        score = float(said)
    except OverflowError:
        score = math.inf
    if math.isnan(score) or score in evaluation.sentinels:
        raise ValueError(f"the evaluator could not tell: it said {score}")
    if not math.isfinite(score) or not evaluation.lowest <= score <= evaluation.highest:
        raise ValueError(
            f"expected a score from {evaluation.lowest} to {evaluation.highest}, found {score}"
        )
    return score


def _above_baseline(score: float, evaluation: EvaluationRule) -> float:
    """What doing nothing earns is worth nothing, and the rest is stretched to the same range."""
    base, lowest, highest = evaluation.baseline, evaluation.lowest, evaluation.highest
    if base is None:
        return score
    if score <= base:
        return lowest
    return lowest + (score - base) / (highest - base) * (highest - lowest)


def _at(said: Mapping[str, Any], key: str) -> object:
    if key not in said:
        message = f"expected {key!r} among {', '.join(sorted(said)) or 'no names at all'}"[
            :MOST_TEXT
        ]
        raise ValueError(message)
    return said[key]


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; who says something twice has said neither, which is a ValueError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("one name twice")
    return found


def _bare_number(text: str) -> float | None:
    """A number that is none in JSON: `.5`, `+1`, `nan`."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _cut(text: str) -> str:
    return repr(text.strip()[:MOST_TEXT])
