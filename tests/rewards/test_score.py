"""What is a score: numbers, numbers by name, reports of tests, and what is none of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.rewards.score import reaches, score_of
from gyre.types.outcomes import EvaluatorAnswer
from gyre.types.tasks import CountedTests, EvaluationRule


def scored(text, *, evidence=(), **rule):
    return score_of(
        EvaluatorAnswer(text=text, evidence=evidence), EvaluationRule(argv=("x",), **rule)
    )


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("0", 0.0),
        ("0.0\n", 0.0),
        ("-0.0", 0.0),
        ("1", 1.0),
        (" 0.25 ", 0.25),
        (".5", 0.5),
        ("+1", 1.0),
        ("5e-1", 0.5),
        ('{"reward": 0}', 0.0),
        ('{"reward": 0.75, "tests": 4}', 0.75),
    ],
)
def test_a_number_is_a_score(text, score):
    assert score == scored(text)


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", "great", "1 2", "0.5\n0.7", "1_0", "0x1", "true", "null", '"1"', "[1]", "{}"],
        *['{"score": 1}', '{"reward": null}', '{"reward": true}', '{"reward": "1"}'],
        *['{"reward": 1, "reward": 0}', '{"reward": [1]}', '{"reward": NaN}'],
        *["nan", "NaN", "inf", "-inf", "Infinity", "-1", "-1.0", '{"reward": -1}'],
        *["1e9", "1.0000001", "-0.1", "1e400", "1" + "0" * 400, "[" * 100_000],
    ],
)
def test_anything_else_is_no_score_and_never_zero(text):
    """SPEC 6.3: FAULTS 18."""
    with pytest.raises(ValueError, match=r"."):
        scored(text)


def test_minus_one_means_unknown_even_where_scores_go_lower():
    assert -2.0 == scored("-2", lowest=-5.0, highest=5.0)
    with pytest.raises(ValueError, match="could not tell"):
        scored("-1", lowest=-5.0, highest=5.0)


def test_a_task_says_which_numbers_mean_unknown():
    assert -1.0 == scored("-1", lowest=-5.0, sentinels=(-2.0,))
    with pytest.raises(ValueError, match="could not tell"):
        scored("0.5", sentinels=(0.5, 0.75))


@given(st.text())
def test_whatever_is_said_is_a_score_within_bounds_or_refused(text):
    try:
        score = scored(text)
    except ValueError:
        return

    assert math.isfinite(score)
    assert 0 <= score <= 1


def test_the_key_says_which_of_several_numbers_is_the_score():
    assert 0.5 == scored('{"reward": 1, "partial": 0.5}', reward_key="partial")
    with pytest.raises(ValueError, match="expected 'partial' among reward"):
        scored('{"reward": 1}', reward_key="partial")


@pytest.mark.parametrize(("kept", "score"), [(1, 0.75), (0.99, 0.0), (0, 0.0)])
def test_behind_a_gate_only_the_whole_counts(kept, score):
    assert score == scored(f'{{"reward": 0.75, "kept": {kept}}}', gate="kept")


@pytest.mark.parametrize("text", ["1", '{"reward": 1}', '{"reward": 1, "kept": -1}'])
def test_a_gate_that_nobody_speaks_of_is_neither_open_nor_shut(text):
    with pytest.raises(ValueError, match=r"kept|could not tell"):
        scored(text, gate="kept")


@pytest.mark.parametrize(
    ("said", "score"), [(0.0, 0.0), (0.6, 0.0), (0.7, 0.25), (0.8, 0.5), (1.0, 1.0)]
)
def test_what_doing_nothing_earns_is_worth_nothing(said, score):
    assert score == pytest.approx(scored(str(said), baseline=0.6))


def test_without_its_evidence_a_score_is_none():
    asked = ("report.xml", "log.txt")

    assert 1.0 == scored("1", evidence=asked)
    assert 1.0 == score_of(
        EvaluatorAnswer(text="1", evidence=asked), EvaluationRule(argv=("x",), evidence=asked)
    )
    with pytest.raises(ValueError, match=r"evidence is missing: log\.txt"):
        score_of(
            EvaluatorAnswer(text="1", evidence=asked[:1]),
            EvaluationRule(argv=("x",), evidence=asked),
        )


JUNIT = """<?xml version="1.0"?>
<testsuites><testsuite name="s" tests="99" failures="0">
  <testcase classname="m.A" name="one"/>
  <testcase classname="m.A" name="two"><system-out>99 passed</system-out></testcase>
  <testcase classname="m.A" name="three"><failure>no</failure></testcase>
  <testcase classname="m.A" name="four"><skipped/></testcase>
  <testcase name="five"><error>gone</error></testcase>
</testsuite></testsuites>"""


def junit(text=JUNIT, **tests):
    return scored(text, score="junit.xml", tests=CountedTests(**tests))


def test_the_denominator_is_the_tasks_own():
    """Neither numbers in the report's attributes nor words on its output count."""
    assert 0.2 == junit(count=10)
    assert 0.4 == junit(count=5)


def test_tests_that_the_task_does_not_know_of_earn_nothing():
    """Two pass and three do not; three is how many there should be."""
    assert 0.0 == junit(count=3)
    assert 0.25 == junit(count=4)


def test_named_tests_count_alone_and_a_missing_one_has_not_passed():
    names = ("m.A::one", "m.A::three", "m.A::six", "five")

    assert 0.25 == junit(fail_to_pass=names)


@pytest.mark.parametrize(
    ("kept", "score"),
    [(("m.A::two",), 1.0), (("m.A::two", "m.A::four"), 0.0), (("m.A::gone",), 0.0)],
)
def test_what_must_still_pass_is_a_gate(kept, score):
    assert score == junit(fail_to_pass=("m.A::one",), pass_to_pass=kept)
    assert score * 2 / 8 == junit(count=8, pass_to_pass=kept)


def test_a_test_that_passes_once_and_fails_once_has_not_passed():
    twice = '<t><testcase name="a"/><testcase name="a"><failure/></testcase></t>'

    assert 0.0 == junit(twice, count=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5 passed",
        "<testsuite>",
        "<testsuite/>",
        '<!DOCTYPE a [<!ENTITY b "c">]><testsuite><testcase name="a"/></testsuite>',
    ],
)
def test_what_is_no_report_is_no_score(text):
    with pytest.raises(ValueError, match="report"):
        junit(text, count=1)


def plain(text, **tests):
    return scored(text, score="tests.json", tests=CountedTests(**tests))


def test_a_plain_report_names_tests_with_what_became_of_them():
    text = '{"a": "passed", "b": "failed", "c": true, "d": false, "e": "skipped"}'

    assert 0.4 == plain(text, count=5)
    assert 0.5 == plain(text, fail_to_pass=("a", "b"), pass_to_pass=("c",))
    assert 0.0 == plain('{"a": "passed", "a": "failed"}', count=1)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "3", '{"a": 1}', '{"a": {"b": true}}', "{", "[" * 10**5]
)
def test_what_is_no_plain_report_is_no_score(text):
    with pytest.raises(ValueError, match=r"."):
        plain(text, count=1)


def test_a_report_without_a_number_of_tests_says_nothing():
    for tests in (None, CountedTests(), CountedTests(count=0), CountedTests(count=-1)):
        with pytest.raises(ValueError, match="needs a number of tests"):
            scored(JUNIT, score="junit.xml", tests=tests)


@pytest.mark.parametrize(
    ("text", "least", "is_enough"),
    [
        ("0.5", {}, True),
        ("0.5", {"reward": 0.5}, True),
        ("0.4", {"reward": 0.5}, False),
        ('{"reward": 1, "safe": 0.2}', {"safe": 0.2}, True),
        ('{"reward": 1, "safe": 0.1}', {"reward": 1.0, "safe": 0.2}, False),
        ('{"reward": 1}', {"safe": 0.0}, False),
        ('{"reward": 1, "safe": true}', {"safe": 0.0}, False),
        ('{"reward": 1, "safe": NaN}', {"safe": 0.0}, False),
    ],
)
def test_a_step_reaches_its_least_by_every_number_that_is_named(text, least, is_enough):
    """What is missing, or no number, has not reached it."""
    said, rule = EvaluatorAnswer(text=text), EvaluationRule(argv=("x",))

    assert is_enough == reaches(said, rule, score_of(said, rule), least)


def test_a_report_of_tests_reaches_a_least_by_its_score():
    rule = EvaluationRule(argv=("x",), score="tests.json", tests=CountedTests(count=2))
    said = EvaluatorAnswer(text='{"a": "passed", "b": "failed"}')

    assert (True, False) == tuple(
        reaches(said, rule, score_of(said, rule), {"reward": least}) for least in (0.5, 0.6)
    )
