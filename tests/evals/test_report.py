"""Results as people see them: lines, means, and a curve."""

from types import SimpleNamespace

from gyre.evals.results import (
    EvalResult,
    EvalResults,
    counts,
    curve,
    line,
    page,
    read_summary,
    spread_of,
    summed_up,
)
from gyre.types.outcomes import Outcome


def result(number, score, *, task="t", reason=None):
    return EvalResult(
        execution=f"g00000-{number:02d}",
        task=task,
        ending="completed",
        outcome=Outcome.EXCLUDED if score is None else Outcome.VALID,
        score=score,
        highest=1.0,
        ran_s=2.5,
        reason=reason,
        calls=3,
        versions=(4,),
    )


RESULTS = [result(0, 1.0), result(1, 0.0), result(2, None, reason="it said -1\nand more")]


def test_a_line_says_what_became_of_an_execution():
    first = line(RESULTS[0], num_done=1, total=12)
    last = line(RESULTS[2], num_done=12, total=12)

    assert "[ 1/12] g00000-00 t 1.000 valid completed 2.5 s 3 calls" == " ".join(first.split())
    assert "[12/12] g00000-02 t - excluded completed 2.5 s 3 calls it said -1" == " ".join(
        last.split()
    )


def test_a_page_says_means_with_their_spread():
    said = "\n".join(page(spread_of(RESULTS)))

    assert "3 executions of 1 task, 2 with a score, 1 excluded" in said
    assert "score      0.500 ± 0.500" in said
    assert "pass rate  0.500 ± 0.500" in said
    assert "1/3 passed" in said


def test_a_page_of_nothing_says_so():
    assert "score      none" in "\n".join(page(spread_of([result(0, None)])))


def test_a_page_stays_readable():
    many = [result(0, 1.0, task=f"task-{number}") for number in range(100)]

    assert "  ... 40 more" == list(page(spread_of(many)))[-1]


def test_outcomes_are_counted():
    assert "2 valid, 1 excluded" == counts(RESULTS)


def test_results_are_lines_and_a_summary_is_read_back(tmp_path):
    with EvalResults(tmp_path) as results:
        for one in RESULTS:
            results.add(one)
    weights = SimpleNamespace(model="tiny", version=4)
    plan = SimpleNamespace(weights=weights, members=3, folder=tmp_path)
    summary = summed_up(plan, RESULTS[::-1], tasks="tasks.jsonl", is_whole=True)

    assert 3 == len((tmp_path / "results.jsonl").read_text().splitlines())
    assert summary == read_summary(tmp_path)
    assert read_summary(tmp_path / "nowhere") is None


def test_a_run_without_rounds_has_no_curve(tmp_path):
    assert [] == list(curve(tmp_path))
