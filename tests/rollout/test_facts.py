"""The facts file and the outcome file: whole, in order, and read back as they were."""

import math

import pytest

from gyre.rollout import facts
from gyre.rollout import facts as outcome
from gyre.rollout.execution import Execution
from gyre.rollout.facts import FACTS_FILE, FactsFile
from gyre.rollout.spec import ProxyTotals, read_proxy_totals, write_proxy_totals
from gyre.types.errors import LogDamaged
from gyre.types.outcomes import (
    Assessed,
    Assessment,
    Closed,
    Ending,
    Launched,
    Outcome,
    Prepared,
    State,
    Status,
    Terminated,
)

LIFE = [
    Prepared(mark="m"),
    Launched(monotonic_s=12.5, boot="b"),
    Terminated(
        ending=Ending.TIMED_OUT,
        reason='over, with a "quote"\nand a line',
        elapsed_s=3.25,
        state=State(folder="/f", reference="abc"),
    ),
    Assessed(
        assessment=Assessment(
            status=Status.FAILED,
            score=None,
            reason="broke",
            reference="abc",
            evaluator="e",
            attempt=1,
            may_retry=False,
        )
    ),
    Closed(outcome=Outcome.EXCLUDED, score=None, reason="broke"),
]


def write(folder):
    file = FactsFile(folder)
    for fact in LIFE:
        file.append(fact, at=1.0)
    file.close()
    return folder / FACTS_FILE


def test_facts_are_read_back_as_they_were_said(tmp_path):
    write(tmp_path)

    assert LIFE == [entry.fact for entry in facts.read(tmp_path)]
    assert list(range(5)) == [entry.sequence for entry in facts.read(tmp_path)]


def test_there_are_no_facts_without_a_file(tmp_path):
    assert () == facts.read(tmp_path)


def test_a_file_cut_anywhere_holds_the_whole_lines_and_can_be_gone_on_with(tmp_path):
    path = write(tmp_path)
    data = path.read_bytes()
    for end in range(len(data)):
        path.write_bytes(data[:end])
        whole = data[:end].count(b"\n")
        file = FactsFile(tmp_path)
        file.append(LIFE[whole], at=1.0)
        file.close()

        assert LIFE[: whole + 1] == [entry.fact for entry in facts.read(tmp_path)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [b"garbage", *lines[1:]],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [lines[0].replace(b"prepared", b"imagined"), *lines[1:]],
        lambda lines: [lines[0].replace(b"mark", b"mirk"), *lines[1:]],
        lambda lines: [b"[]", *lines[1:]],
    ],
)
def test_damage_is_named_and_nothing_is_written_over_it(damage, tmp_path):
    path = write(tmp_path)
    path.write_bytes(b"\n".join([*damage(path.read_bytes().splitlines()), b""]))
    before = path.read_bytes()

    with pytest.raises(LogDamaged, match="line "):
        facts.read(tmp_path)
    with pytest.raises(LogDamaged):
        FactsFile(tmp_path)
    assert before == path.read_bytes()


def test_an_outcome_is_read_back_as_it_was_written(tmp_path):
    for known in (LIFE[:3], LIFE):
        record = Execution("e1", "t", known).record
        outcome.write(tmp_path, record)

        assert record == outcome.read_outcome(tmp_path)
    assert [outcome.OUTCOME_FILE] == [path.name for path in tmp_path.iterdir()]


def test_there_is_no_outcome_before_its_file_is_whole(tmp_path):
    (tmp_path / "outcome.writing").write_bytes(b'{"exec')

    assert outcome.read_outcome(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "null"])
def test_a_file_that_is_no_outcome_is_named(text, tmp_path):
    (tmp_path / outcome.OUTCOME_FILE).write_text(text)

    with pytest.raises(LogDamaged, match="not an outcome file"):
        outcome.read_outcome(tmp_path)


def test_an_outcome_of_another_format_is_named(tmp_path):
    outcome.write(tmp_path, Execution("e1", "t", LIFE).record)
    path = tmp_path / outcome.OUTCOME_FILE
    path.write_text(path.read_text().replace('"format":1', '"format":9'))

    with pytest.raises(LogDamaged, match="found 9"):
        outcome.read_outcome(tmp_path)


def test_what_is_told_is_heard_and_garbage_is_not(tmp_path):
    assert ProxyTotals() == read_proxy_totals(tmp_path)
    write_proxy_totals(tmp_path, ProxyTotals(held_s=2.5, committed_calls=3))
    assert ProxyTotals(held_s=2.5, committed_calls=3) == read_proxy_totals(tmp_path)
    write_proxy_totals(tmp_path, ProxyTotals(held_s=math.inf))
    assert ProxyTotals() == read_proxy_totals(tmp_path)
    (tmp_path / "told.json").write_text("{")
    assert ProxyTotals() == read_proxy_totals(tmp_path)
