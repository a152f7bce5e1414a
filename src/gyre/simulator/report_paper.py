"""The paper's results beside the simulator's, and what lies beyond them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, stdev
from typing import Any, TypeAlias

from gyre.simulator.paper import (
    ABLATION_H,
    FITTED,
    NL2REPO,
    NL2REPO_48_STEPS,
    NL2REPO_MAX,
    NL2REPO_MAX_48_STEPS_H,
    TABLE,
    PaperSetting,
    SpeedUps,
    compared,
)
from gyre.simulator.report import FORMAT, MeanAndSpread, ScenarioRuns, plain
from gyre.simulator.result import SimulationResult
from gyre.simulator.scenario import Scenario
from gyre.simulator.variants import POLICIES, decode_bound

APART = 0.05
"""Rows closer than this as published have no order that means much."""
BASE = "E0"
"""The row that policies beyond the paper start from."""
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Of an execution's time on a full engine: what stretches in proportion to load."""
LONG: tuple[tuple[PaperSetting, float], ...] = ((NL2REPO, 1.0), (NL2REPO, 1.5), (NL2REPO_MAX, 1.5))
"""Settings over 48 steps, with their targets of mean staleness."""
EXECUTIONS_PER_CLAIM = 4
"""Of long runs, which it makes faster to simulate."""

Key: TypeAlias = tuple[str, ...]
"""Names a scenario among those to be run."""


def scenarios() -> dict[Key, Scenario]:
    """Everything that has to be run for the report."""
    found: dict[Key, Scenario] = {("table", name): one for name, one in TABLE.items()}
    for setting, staleness in LONG:
        for name, one in compared(setting, staleness=staleness).items():
            long = replace(one, executions_per_claim=EXECUTIONS_PER_CLAIM)
            found["long", _where(setting, staleness), name] = long
    for name, change in POLICIES.items():
        for share in SHARES:
            changed = decode_bound(change(TABLE[BASE]), share=share)
            found["policy", name, f"{share:g}"] = changed
    return found


def _where(setting: PaperSetting, staleness: float) -> str:
    return f"{setting.name}, staleness {staleness:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRow:
    """One scenario beside its published hours."""

    name: str
    published_h: float
    simulated_h: tuple[float, ...]
    """Per seed."""
    is_fitted: bool
    """Whether the fit has seen its published hours; else they are predicted."""

    @property
    def mean_h(self) -> float:
        return fmean(self.simulated_h)

    @property
    def spread_h(self) -> float:
        """Standard deviation over seeds."""
        return stdev(self.simulated_h) if len(self.simulated_h) > 1 else 0.0

    @property
    def error(self) -> float:
        """Relative, above 0 where the simulation is slower."""
        return self.mean_h / self.published_h - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows beside their published hours."""

    rows: tuple[CalibrationRow, ...]

    @property
    def mean_error(self) -> float:
        """Mean of absolute relative errors over all rows."""
        return fmean(abs(row.error) for row in self.rows)

    @property
    def predicted_error(self) -> float | None:
        """The same over rows that were not fitted."""
        errors = [abs(row.error) for row in self.rows if not row.is_fitted]
        return fmean(errors) if errors else None

    def misordered(self, *, apart: float) -> tuple[tuple[str, str], ...]:
        """Pairs (faster, slower as published) further apart than that, simulated otherwise."""
        return tuple(
            (fast.name, slow.name)
            for fast in self.rows
            for slow in self.rows
            if slow.published_h > fast.published_h * (1 + apart) and slow.mean_h <= fast.mean_h
        )


def seeded(asked: Mapping[Key, Scenario], seeds: Sequence[int]) -> list[Scenario]:
    """Each scenario with each seed."""
    return [replace(scenario, seed=seed) for scenario in asked.values() for seed in seeds]


def by_scenario(
    asked: Mapping[Key, Scenario], records: Sequence[SimulationResult]
) -> dict[Key, Sequence[SimulationResult]]:
    """What the runs of `seeded` left, in their order."""
    many = len(records) // len(asked)
    return {key: records[at * many : (at + 1) * many] for at, key in enumerate(asked)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two rows that the paper has close together."""

    faster: str
    slower: str
    published: float
    """Hours of the slower over those of the faster."""
    simulated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """How much sooner Gyre is done than a baseline."""

    where: str
    baseline: str
    simulated: float
    published: tuple[float, float]
    """A range, or twice the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """A policy on the base row."""

    name: str
    hours: MeanAndSpread
    staleness: float | None
    bound_h: float
    faster: tuple[tuple[float, float], ...]
    """(share of decoding that slows under load, hours as published over hours with it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperReport:
    """All that was run, beside what is published."""

    num_seeds: int
    comparison: Comparison
    speed_ups: tuple[SpeedUp, ...]
    policies: tuple[PolicyRow, ...]

    @classmethod
    def of(cls, runs: Mapping[Key, Sequence[SimulationResult]]) -> "PaperReport":
        return cls(
            num_seeds=len(runs["table", BASE]),
            comparison=Comparison(
                rows=tuple(
                    CalibrationRow(
                        name=name,
                        published_h=published_h,
                        simulated_h=tuple(record.hours for record in runs["table", name]),
                        is_fitted=name in FITTED,
                    )
                    for name, published_h in ABLATION_H.items()
                )
            ),
            speed_ups=tuple(_speed_ups(runs)),
            policies=tuple(_beyond(runs, name) for name in POLICIES),
        )

    @property
    def num_apart(self) -> int:
        """Pairs of rows whose published order means something."""
        return sum(ratio > 1 + APART for _, _, ratio in _pairs(self.comparison.rows))

    @property
    def close(self) -> tuple[Pair, ...]:
        return tuple(
            Pair(
                faster=fast.name,
                slower=slow.name,
                published=ratio,
                simulated=slow.mean_h / fast.mean_h,
            )
            for fast, slow, ratio in _pairs(self.comparison.rows)
            if ratio <= 1 + APART
        )

    def lines(self) -> list[str]:
        return [*_ablation(self), "", *_long(self.speed_ups), "", *_policies(self.policies)]

    def as_json(self) -> dict[str, Any]:
        rows = [
            {**plain(row), "mean_h": row.mean_h, "spread_h": row.spread_h, "error": row.error}
            for row in self.comparison.rows
        ]
        return {
            "format": FORMAT,
            "num_seeds": self.num_seeds,
            "rows": rows,
            "mean_error": self.comparison.mean_error,
            "predicted_error": self.comparison.predicted_error,
            "apart": APART,
            "num_apart": self.num_apart,
            "misordered": plain(self.comparison.misordered(apart=APART)),
            "close": plain(self.close),
            "speed_ups": plain(self.speed_ups),
            "policies": plain(self.policies),
        }


def _pairs(
    rows: Sequence[CalibrationRow],
) -> Iterator[tuple[CalibrationRow, CalibrationRow, float]]:
    """Two rows each, the faster as published first, and their published ratio."""
    ordered = sorted(rows, key=lambda row: row.published_h)
    for fast, slow in combinations(ordered, 2):
        yield fast, slow, slow.published_h / fast.published_h


def _speed_ups(runs: Mapping[Key, Sequence[SimulationResult]]) -> Iterator[SpeedUp]:
    for setting, staleness in LONG:
        where = _where(setting, staleness)
        hours = {
            name: MeanAndSpread.of([record.hours for record in runs["long", where, name]]).mean
            for name in ("gyre", "async", "colocate")
        }
        ranges = {"async": _published(setting).over_async}
        ranges["colocate"] = _published(setting).over_colocate
        for baseline, published in ranges.items():
            yield SpeedUp(
                where=where,
                baseline=baseline,
                simulated=hours[baseline] / hours["gyre"],
                published=published,
            )


def _published(setting: PaperSetting) -> SpeedUps:
    if setting is NL2REPO:
        return NL2REPO_48_STEPS
    hours = NL2REPO_MAX_48_STEPS_H
    over_async, over_colocate = hours["async"] / hours["gyre"], hours["colocate"] / hours["gyre"]
    return SpeedUps(over_async=(over_async,) * 2, over_colocate=(over_colocate,) * 2)


def _beyond(runs: Mapping[Key, Sequence[SimulationResult]], name: str) -> PolicyRow:
    first = next(iter(POLICIES))

    def ran(policy: str, share: float) -> ScenarioRuns:
        records = tuple(runs["policy", policy, f"{share:g}"])
        return ScenarioRuns(name=policy, scenario=TABLE[BASE], records=records)

    plainly = ran(name, SHARES[0])
    return PolicyRow(
        name=name,
        hours=plainly.hours,
        staleness=plainly.staleness,
        bound_h=plainly.bound_h,
        faster=tuple(
            (share, ran(first, share).hours.mean / ran(name, share).hours.mean) for share in SHARES
        ),
    )


def _ablation(report: PaperReport) -> list[str]:
    found = report.comparison
    seeds = f"{report.num_seeds} seed{'s' if report.num_seeds > 1 else ''}"
    lines = [f"Hours of twelve steps, {seeds}", "  row  published  simulated     error"]
    for row in found.rows:
        spread = f" ± {row.spread_h:.2f}" if len(row.simulated_h) > 1 else ""
        kind = "fitted" if row.is_fitted else "predicted"
        lines.append(
            f"  {row.name}   {row.published_h:>9.2f}  {f'{row.mean_h:.2f}{spread}':<12}"
            f"  {row.error:>+6.1%}  {kind}"
        )
    lines.append(f"  mean error {found.mean_error:.1%}" + _predicted(found))
    wrong = found.misordered(apart=APART)
    order = "all ordered as in the paper"
    if wrong:
        order = f"{len(wrong)} ordered otherwise: {', '.join(f'{a} < {b}' for a, b in wrong)}"
    lines.append(f"  {report.num_apart} pairs further than {APART:.0%} apart: {order}")
    lines.append(f"  {len(report.close)} closer pairs, slower over faster as published:")
    lines += [
        f"    {one.slower} / {one.faster}  published {one.published:.3f}  "
        f"simulated {one.simulated:.3f}"
        for one in report.close
    ]
    return lines


def _predicted(found: Comparison) -> str:
    num = sum(not row.is_fitted for row in found.rows)
    error = found.predicted_error
    return "" if error is None else f"; of the {num} rows that were predicted {error:.1%}"


def _long(speed_ups: Sequence[SpeedUp]) -> list[str]:
    lines = ["How much sooner Gyre takes 48 steps", f"  {'':<41}  simulated  published"]
    for one in speed_ups:
        low, high = one.published
        published = f"{low:.2f}x" if low == high else f"{low:.2f}x to {high:.2f}x"
        name = f"{one.where}, than {one.baseline}"
        lines.append(f"  {name:<41}  {one.simulated:>8.2f}x  {published}")
    return [*lines, f"  {NL2REPO_MAX.name} has durations and a training rate that stand in."]


def _policies(policies: Sequence[PolicyRow]) -> list[str]:
    lines = [
        f"Beyond the paper, on {BASE}, and where a part of decoding slows down under load",
        "                                         faster, by that part",
        "        hours          staleness  bound" + "".join(f"  {share:>5g}" for share in SHARES),
    ]
    for number, one in enumerate(policies, start=1):
        staleness = "-" if one.staleness is None else f"{one.staleness:.2f}"
        faster = "".join(f"  {ratio:>4.2f}x" for _, ratio in one.faster)
        lines.append(
            f"  {number:>2}  {one.hours!s:<13}  {staleness:>9}  {one.bound_h:>5.2f}{faster}"
        )
    lines += [f"  {number:>2}  {one.name}" for number, one in enumerate(policies, start=1)]
    lines.append("  Engines that are overcommitted do more at once and may beat the bound.")
    return lines
