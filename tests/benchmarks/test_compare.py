"""The table and the goals, computed from raw samples that are small enough to check by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare

MACHINE = {"slug": "abacus-1core", "cpu": "abacus", "cores": 1, "memory_gib": 1, "kernel": "0"}


def result_file(
    folder: Path,
    name: str,
    samples: dict[str, Any],
    *,
    day: str = "2026-01-01",
    settings: dict[str, Any] | None = None,
) -> Path:
    found = {
        "format": compare.FORMAT,
        "name": name,
        "at": f"{day}T00:00:00Z",
        "machine": MACHINE,
        "load_average_before_and_after": [0.0, 0.0],
        "python": "3.11.0",
        "packages": {},
        "commit": None,
        "sources": "0",
        "command": [],
        "settings": settings or {},
        "samples": samples,
    }
    path = folder / f"{day}-abacus-1core-{name}.json"
    path.write_text(json.dumps(found))
    return path


def costs(*cpu_s: float) -> list[dict[str, float]]:
    return [{"calls": 100, "cpu_s": one} for one in cpu_s]


def test_the_cost_of_a_call_is_the_median_over_runs(tmp_path: Path) -> None:
    path = result_file(tmp_path, "short", {"gyre": costs(0.3, 0.1, 0.2, 9.0, 0.15)})

    found = compare.quantities(compare.load(path))

    assert 2.0 == pytest.approx(found["gyre cpu_ms"])
    assert 500 == pytest.approx(found["gyre calls_per_cpu_s"])


def test_numbers_of_the_settings_can_be_quoted(tmp_path: Path) -> None:
    settings = {"steps": 6, "scale": {"mean_s": 4.5, "of": "hours"}, "runs": [1, 2]}
    path = result_file(tmp_path, "short", {"gyre": costs(0.1)}, settings=settings)

    found = compare.quantities(compare.load(path))

    assert (6, 4.5) == (found["setting steps"], found["setting scale mean_s"])
    assert {"setting steps", "setting scale mean_s"} == {
        one for one in found if one.startswith("setting")
    }


def test_two_peers_give_both_ratios(tmp_path: Path) -> None:
    samples = {"gyre": costs(0.1), "litellm": costs(1.5)}

    found = compare.quantities(compare.load(result_file(tmp_path, "short", samples)))

    assert 15 == pytest.approx(found["litellm/gyre"])
    assert 1 / 15 == pytest.approx(found["gyre/litellm"])


def test_what_was_simulated_beside_live_runs_stands_beside_them(tmp_path: Path) -> None:
    settings = {"simulated_s": {"colocate": [30.0, 50.0]}}
    samples = {"elastic": [{"seconds": 20.0}]}

    path = result_file(tmp_path, "gpu-live", samples, settings=settings)
    found = compare.quantities(compare.load(path))

    assert 40 == found["colocate, simulated seconds"]
    assert 2 == found["colocate, simulated/elastic"]


def test_one_call_that_failed_in_any_run_is_shown(tmp_path: Path) -> None:
    samples = {"elastic": [{"failed_calls": 0}, {"failed_calls": 1}, {"failed_calls": 0}]}

    found = compare.quantities(compare.load(result_file(tmp_path, "gpu-live", samples)))

    assert 1 == found["elastic failed_calls"]


def test_added_latency_is_taken_run_by_run(tmp_path: Path) -> None:
    runs = [
        {"calls": 1, "direct_s": {"p50": 0.001}, "through_s": {"p50": 0.002}},
        {"calls": 1, "direct_s": {"p50": 0.010}, "through_s": {"p50": 0.0115}},
        {"calls": 1, "direct_s": {"p50": 0.001}, "through_s": {"p50": 0.009}},
    ]

    found = compare.quantities(compare.load(result_file(tmp_path, "latency", {"gyre": runs})))

    assert 1.5 == pytest.approx(found["gyre added_ms"])


def points(held: list[int]) -> list[dict[str, Any]]:
    listed = [
        {"calls": number, "held_bytes": bytes_, "tokens": 100 * number}
        for number, bytes_ in enumerate(held)
    ]
    return [{"calls": len(held), "points": listed}]


def test_memory_that_grows_with_tokens_is_told_from_memory_that_grows_with_calls(
    tmp_path: Path,
) -> None:
    linear = points([1000 * number for number in range(21)])
    quadratic = points([50 * number**2 for number in range(21)])

    path = result_file(tmp_path, "held", {"gyre": linear, "snapshots": quadratic})
    found = compare.quantities(compare.load(path))

    assert 10 == pytest.approx(found["gyre bytes_per_token"])
    assert 1 == pytest.approx(found["gyre late/early"])
    assert found["snapshots late/early"] > 2


def test_learning_is_told_over_the_steps_that_all_runs_have_taken(tmp_path: Path) -> None:
    scores = [0.2] * 5 + [0.5] * 5 + [0.9] * 10
    run = {
        "window_steps": 15,
        "scores": scores,
        "gradient_norms": [2.0, 0.0] * 10,
        "forward_backward_s": [3.0, 0.0] * 10,
        "executions": [4, 0] * 10,
        "trajectories": [12, 0] * 10,
        "packed_tokens": [400, 0] * 10,
        "held_out": [
            {"version": 0, "mean": 0.25},
            {"version": 10, "mean": 0.5},
            {"version": 20, "mean": 0.75},
        ],
    }

    found = compare.quantities(compare.load(result_file(tmp_path, "gpu-learn", {"J=5": [run]})))

    assert 0.2 == pytest.approx(found["J=5 first_score"])
    assert 0.9 == pytest.approx(found["J=5 last_score"])
    assert 0.5 == found["J=5 held_out_10"]
    assert (0.25, 0.75, 0.5) == tuple(found[f"J=5 {one}"] for one in ("before", "after", "gained"))
    assert (2.0, 3.0) == (found["J=5 norm"], found["J=5 passes_s"])
    assert (3, 100) == (found["J=5 trajectories_each"], found["J=5 packed_tokens_each"])
    assert 20 == found["J=5 steps_taken"]


def test_a_goal_is_missed_only_beyond_its_bound(tmp_path: Path) -> None:
    result_file(tmp_path, "long", {"gyre": costs(0.2), "parse-hash-journal": costs(0.1)})
    result_file(tmp_path, "short", {"gyre": costs(0.11), "litellm": costs(1.0)})

    judged = {goal.quantity: met for goal, _, met in compare.judged(compare.load_all(tmp_path))}

    assert {"gyre/parse-hash-journal": True, "litellm/gyre": False} == judged


def test_only_the_newest_result_of_a_name_is_judged(tmp_path: Path) -> None:
    result_file(tmp_path, "short", {"gyre": costs(1.0), "litellm": costs(1.0)}, day="2026-01-01")
    result_file(tmp_path, "short", {"gyre": costs(0.1), "litellm": costs(2.0)}, day="2026-01-02")

    ((_, value, met),) = compare.judged(compare.load_all(tmp_path))

    assert 20 == pytest.approx(value)
    assert met


@pytest.mark.parametrize(("now", "says"), [(0.21, 0), (0.35, 1)])
def test_a_ratio_has_slipped_when_it_is_worse_by_more_than_the_noise(
    tmp_path: Path, now: float, says: int
) -> None:
    floor = costs(0.1, 0.1, 0.11)
    before = {"gyre": costs(0.2, 0.2, 0.2), "parse-hash-journal": floor}
    after = {"gyre": costs(now, now, now), "parse-hash-journal": floor}
    result_file(tmp_path, "long", before, day="2026-01-01")
    result_file(tmp_path, "long", after, day="2026-01-02")

    assert says == len(list(compare.slipped(compare.load_all(tmp_path))))


def test_the_table_names_the_file_it_was_computed_from(tmp_path: Path) -> None:
    path = result_file(tmp_path, "short", {"passthrough": costs(0.01), "gyre": costs(0.05)})

    results = compare.load_all(tmp_path)
    table = compare.tables(results)

    assert f"(results/{path.name})" in compare.summary(results)
    assert path.name in table
    assert "| gyre | 5 | 0.5 | 2,000 | 0 |" in table


@pytest.mark.parametrize("field", compare.FIELDS)
def test_a_file_without_one_of_its_fields_is_no_result(tmp_path: Path, field: str) -> None:
    path = result_file(tmp_path, "short", {"gyre": costs(0.1)})
    found = json.loads(path.read_text())
    del found[field]
    path.write_text(json.dumps(found))

    with pytest.raises(ValueError, match=field):
        compare.load(path)


def test_a_file_whose_name_says_another_day_is_no_result(tmp_path: Path) -> None:
    path = result_file(tmp_path, "short", {"gyre": costs(0.1)})
    renamed = path.rename(path.with_name("2025-12-31-abacus-1core-short.json"))

    with pytest.raises(ValueError, match="2026-01-01-abacus-1core-short"):
        compare.load(renamed)


def test_a_peer_without_runs_is_refused(tmp_path: Path) -> None:
    path = result_file(tmp_path, "short", {"gyre": []})

    with pytest.raises(ValueError, match="at least one run"):
        compare.load(path)


def test_the_summary_replaces_what_stands_between_its_marks(tmp_path: Path) -> None:
    result_file(tmp_path, "short", {"passthrough": costs(0.01), "gyre": costs(0.05)})
    results = compare.load_all(tmp_path)
    readme = f"before\n{compare.BEGIN}\nold\n{compare.END}\nafter\n"

    once = compare.with_summary(readme, results)

    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert once == compare.with_summary(once, results)


def test_a_goal_that_no_result_speaks_of_is_listed_as_not_measured(tmp_path: Path) -> None:
    result_file(tmp_path, "short", {"gyre": costs(0.1), "litellm": costs(1.5)})
    results = compare.load_all(tmp_path)
    unmeasured = [goal.name for goal in compare.unjudged(results)]

    assert "short" not in unmeasured
    assert {goal.name for goal in compare.GOALS} == {"short", *unmeasured}
    assert len(unmeasured) == compare.summary(results).count("| not measured | |")
