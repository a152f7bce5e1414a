"""A request to the simulator: one scenario, others beside it, and all of their seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gyre.config.settings import overridden
from gyre.scheduler.messages import Command, Event, StepTaken
from gyre.simulator.paper import PAPER
from gyre.simulator.report import ScenarioRuns
from gyre.simulator.result import SimulationResult
from gyre.simulator.scenario import Scenario, scenario_of
from gyre.simulator.variants import POLICIES, UnfitPlacement, placements
from gyre.simulator.workload import HOUR_S
from gyre.simulator.world import EventLog, run
from gyre.types.errors import ConfigError

Entry: TypeAlias = tuple[float, Event, tuple[Command, ...]]
Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSource:
    """Tables that describe a run to simulate, from a file or a journal."""

    where: str
    tables: Mapping[str, Any]
    overrides: Sequence[str]
    notes: Sequence[str] = ()
    """What a reader should know of them."""


def from_tables(where: str, tables: Mapping[str, Any], overrides: Iterable[str]) -> Scenario:
    """What tables and overrides describe together; every mistake of both is named."""
    changed = overridden(tables, overrides)
    mistakes = list(changed.mistakes)
    try:
        scenario = scenario_of(changed.tables)
    except ConfigError as error:
        mistakes.append(str(error))
    if mistakes:
        raise ConfigError(f"{where}: {'; '.join(mistakes)}")
    return scenario


def preset(name: str, overrides: Sequence[str]) -> Scenario:
    """One of the paper's runs, as it is."""
    if overrides:
        raise ConfigError(f"{name}: a preset takes no {overrides[0]}; write a file to change it")
    return PAPER[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """Scenarios to compare, each run with the same number of seeds."""

    variants: Mapping[str, Scenario]
    """By name, the one that the others are measured by first."""
    num_seeds: int
    refused: tuple[str, ...] = ()
    """What cannot stand beside them, and why."""

    @property
    def runs(self) -> list[Scenario]:
        """Every variant with every seed, counted from its own."""
        seeds = range(self.num_seeds)
        return [
            replace(variant, seed=variant.seed + at)
            for variant in self.variants.values()
            for at in seeds
        ]

    def ran(self, records: Sequence[SimulationResult]) -> list[ScenarioRuns]:
        """Records of `runs`, in their order, by variant."""
        many = self.num_seeds
        return [
            ScenarioRuns(
                name=name, scenario=one, records=tuple(records[at * many : (at + 1) * many])
            )
            for at, (name, one) in enumerate(self.variants.items())
        ]


def asked(
    given: Scenario,
    *,
    seed: int | None = None,
    num_seeds: int = 1,
    compares: bool = False,
    policies: Sequence[str] = (),
) -> SimulationRequest:
    """The scenario, or all placements of it; and beside that the scenario under each policy."""
    if seed is not None:
        given = replace(given, seed=seed)
    if unknown := [name for name in policies if name not in POLICIES]:
        raise ConfigError(f"--policy {unknown[0]}: unknown; known: {'; '.join(POLICIES)}")
    found = placements(given) if compares else {given.name: given}
    refused = [policy for policy in found.values() if isinstance(policy, UnfitPlacement)]
    possible = {name: one for name, one in found.items() if not isinstance(one, UnfitPlacement)}
    return SimulationRequest(
        variants=possible | {name: POLICIES[name](given) for name in policies},
        num_seeds=num_seeds,
        refused=tuple(f"{policy.name}: not possible here: {policy.reason}" for policy in refused),
    )


class _ReportingLog(list[Entry]):
    """An event log that reports its run's progress at every step."""

    def __init__(self, scenario: Scenario, say: Say, *, is_kept: bool) -> None:
        super().__init__()
        self._text = f"{scenario.name} seed {scenario.seed}: step {{}} of {scenario.shape.steps}"
        self._say = say
        self._is_kept = is_kept

    def append(self, entry: Entry) -> None:
        if self._is_kept:
            super().append(entry)
        now, event, _ = entry
        if isinstance(event, StepTaken):
            self._say(f"{self._text.format(event.step + 1)}, {now / HOUR_S:.2f} h")


def simulated(scenario: Scenario, say: Say) -> SimulationResult:
    """A simulated run that reports its progress at each of its steps."""
    return run(scenario, log=EventLog(entries=_ReportingLog(scenario, say, is_kept=False)))


def journaled(scenario: Scenario, say: Say) -> tuple[SimulationResult, list[tuple[float, Event]]]:
    """The same, with its events and their times."""
    entries = _ReportingLog(scenario, say, is_kept=True)
    record = run(scenario, log=EventLog(entries=entries))
    return record, [(now, event) for now, event, _ in entries]
