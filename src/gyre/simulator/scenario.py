"""Scenario, and scenarios from files."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from math import inf, isinf
from typing import Any, TypeVar

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.policies import (
    Async,
    Boundary,
    Colocate,
    Continuous,
    Dispatch,
    Elastic,
    LongestFirst,
    OldestFirst,
    Resumable,
)
from gyre.simulator.workload import (
    ByGroups,
    ByTokens,
    Costs,
    Decode,
    Drift,
    Durations,
    Failures,
    LogNormal,
    Quantiles,
    ReplayedDurations,
    RewardDurations,
    SimulatedDeadlines,
    Workload,
)
from gyre.types.errors import ConfigError
from gyre.types.ids import EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What is known of a query before it runs, for launch orders that ask."""

    sigma: float = 0.0
    """Error of the logarithm of its typical duration."""

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < inf:
            raise ConfigError(f"estimates.sigma: not below 0, not {self.sigma}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """What breaks, by seeded chance; nothing unless asked."""

    mean_life_h: float = inf
    """Of a cell between its starts and its deaths."""
    restart_s: float = 600.0
    """From a cell's death until it is up again."""
    failed_transitions: float = 0.0
    """Share of transitions that leave a cell where it was."""

    def __post_init__(self) -> None:
        if self.mean_life_h <= 0 or not 0 <= self.restart_s < inf:
            raise ConfigError(f"faults: lives and restarts take time; found {self}")
        if not 0 <= self.failed_transitions < 1:
            raise ConfigError(
                f"faults.failed_transitions: a share below 1, not {self.failed_transitions}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides a simulated run."""

    name: str
    shape: SchedulerConfig
    workload: Workload
    costs: Costs
    nodes_per_cell: float = 1.0
    """What training's cost is divided by; a standalone engine has nodes in proportion to its
    capacity."""
    seed: int = 0
    executions_per_claim: int = 1
    join_s: float = 30.0
    """How long the core waits before its update for satellites that pull (SPEC 3.1)."""
    estimates: Estimates | None = None
    faults: FaultRates = field(default_factory=FaultRates)

    def __post_init__(self) -> None:
        if wrong := list(self._mistakes()):
            raise ConfigError("; ".join(wrong))

    @property
    def node_per_slot(self) -> float:
        return self.nodes_per_cell / self.shape.cell_capacity

    @property
    def num_nodes(self) -> float:
        cells = self.shape.num_cells * self.nodes_per_cell
        return cells + self.shape.standalone_capacity * self.node_per_slot

    @property
    def cells_serve(self) -> bool:
        return not isinstance(self.shape.placement, Async)

    def capacity(self, engine: EngineId) -> int:
        """Executions an engine is meant for."""
        if engine < self.shape.num_cells:
            return self.shape.cell_capacity
        return self.shape.standalone_capacities[engine - self.shape.num_cells]

    def _mistakes(self) -> list[str]:
        found = []
        if not 0 < self.nodes_per_cell < inf:
            found.append(f"nodes_per_cell: above 0, not {self.nodes_per_cell}")
        if self.seed < 0:
            found.append(f"seed: not below 0, not {self.seed}")
        if self.executions_per_claim < 1:
            found.append(f"executions_per_claim: at least 1, not {self.executions_per_claim}")
        if not 0 <= self.join_s < inf:
            found.append(f"join_s: not below 0, not {self.join_s}")
        if self.shape.steps is None:
            found.append("steps: a simulation ends; give a number of steps")
        if self.shape.evaluation_slots:
            found.append("evaluation_slots: held-out evaluation is not simulated; leave it at 0")
        return found


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a value must be, in words and as a test."""

    says: str
    accepts: Callable[[Any], bool]
    limit: str = ""
    """Said of numbers, which may be of the right kind and too large."""

    def expected(self, value: Any) -> str:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return f"{self.says}{self.limit}" if is_number else self.says


MOST = 10**12
"""Numbers beyond it mean nothing here, and could not be added to times any more."""
MOST_COUNT = 10**6
MOST_EXECUTIONS = 10**8
MOST_SPREAD = 100
"""Of logarithms; what they are the logarithm of has to be a number."""


def _is_number(value: Any) -> bool:
    """Infinity is one, where there is no limit."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= MOST or (isinstance(value, float) and isinf(value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value <= MOST_COUNT


def _is_list(value: Any, inner: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(inner(item) for item in value)


_WHOLE = _Kind("a whole number", _is_whole, f" of at most {MOST:g}")
_COUNT = _Kind("a whole number", _is_count, f" of at most {MOST_COUNT:,}")
_SEED = _Kind(
    "a whole number",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64,
    " of at most 64 bits, and not below 0",
)
_NUMBER = _Kind("a number", _is_number, f" of at most {MOST:g}")
_LOGARITHM = _Kind(
    "a number",
    lambda value: _is_number(value) and abs(value) <= MOST_SPREAD,
    f" between -{MOST_SPREAD} and {MOST_SPREAD}",
)
_TRUTH = _Kind("true or false", lambda value: isinstance(value, bool))
_TEXT = _Kind("text", lambda value: isinstance(value, str))
_WHOLES = _Kind("a list of whole numbers", lambda value: _is_list(value, _is_whole))
_NUMBER_LISTS = _Kind(
    "a list of lists of numbers",
    lambda value: _is_list(value, lambda one: _is_list(one, _is_number) and bool(one)),
)


def _one_of(*names: str) -> _Kind:
    return _Kind(f"one of {', '.join(names)}", lambda value: value in names)


_PLACEMENTS = {"elastic": Elastic, "async": Async, "colocate": Colocate, "resumable": Resumable}
_ORDERS = {"oldest": OldestFirst, "longest": LongestFirst}

_TOP = {
    "name": _TEXT,
    "seed": _SEED,
    "executions_per_claim": _WHOLE,
    "join_s": _NUMBER,
}
_SECTIONS: dict[str, dict[str, _Kind]] = {
    "schedule": {
        "groups_per_batch": _COUNT,
        "executions_per_group": _COUNT,
        "steps_per_burst": _COUNT,
        "steps": _COUNT,
        "extra_dispatch": _NUMBER,
        "depth": _COUNT,
        "placement": _one_of(*_PLACEMENTS),
        "streaming": _TRUTH,
        "launch_order": _one_of(*_ORDERS),
        "surplus": _COUNT,
        "supply_fraction": _NUMBER,
        "supply_dwell_s": _NUMBER,
        "rescue_s": _NUMBER,
        "min_valid": _WHOLE,
        "max_void": _NUMBER,
        "evaluation_holds_slot": _TRUTH,
        "endless_dispatch": _TRUTH,
        "overcommit": _NUMBER,
    },
    "cells": {"count": _COUNT, "capacity": _COUNT, "nodes": _NUMBER, "standalone": _WHOLES},
    "work": {
        "log_mean": _LOGARITHM,
        "sigma": _LOGARITHM,
        "quantiles": _NUMBER_LISTS,
        "recorded_h": _NUMBER_LISTS,
        "between": _NUMBER,
        "tokens_per_hour": _NUMBER,
        "decode_share": _NUMBER,
    },
    "deadlines": {"harness_h": _NUMBER, "overall_h": _NUMBER},
    "evaluations": {
        "mean_h": _NUMBER,
        "sigma": _LOGARITHM,
        "stuck_queries": _NUMBER,
        "stuck_within": _NUMBER,
    },
    "failures": {"crashed": _NUMBER, "never_started": _NUMBER, "void": _NUMBER},
    "drift": {"to": _NUMBER, "first_step": _WHOLE, "last_step": _WHOLE},
    "costs": {
        "groups_per_node_hour": _NUMBER,
        "tokens_per_node_s": _NUMBER,
        "into_training_s": _NUMBER,
        "out_of_training_s": _NUMBER,
        "pull_s": _NUMBER,
        "update_s": _NUMBER,
        "publication_s": _NUMBER,
    },
    "estimates": {"sigma": _LOGARITHM},
    "faults": {"mean_life_h": _NUMBER, "restart_s": _NUMBER, "failed_transitions": _NUMBER},
}
_FIELD = re.compile(r"([a-z_.]+)(\[\d+\])?: (.*)")
_RENAMED = {
    "count": "num_cells",
    "capacity": "cell_capacity",
    "standalone": "standalone_capacities",
}
_PLACES = {
    "dispatch": "schedule.depth",
    "dispatch.depth": "schedule.depth",
    "dispatch.extra_dispatch": "schedule.extra_dispatch",
    "placement.streaming": "schedule.streaming",
}
"""Keys of fields that are parts of a shape's fields."""
_WORKLOAD_PARTS: dict[str, Callable[..., Any]] = {
    "deadlines": SimulatedDeadlines,
    "evaluations": RewardDurations,
    "failures": Failures,
    "drift": Drift,
}


def scenario_of(tables: Mapping[str, Any]) -> Scenario:
    """What the tables describe; keys that are left out have their class's default."""
    reading = _Reading(tables)
    scenario = reading.scenario()
    if reading.mistakes or scenario is None:
        raise ConfigError("\n".join(reading.mistakes))
    return scenario


class _Reading:
    """Values that are what they should be, and a list of those that are not."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.mistakes: list[str] = []
        self._refused: set[str] = set()
        """Paths of values that are not what they should be, and so not missing."""
        known = {*_TOP, *_SECTIONS}
        self._top = self._checked("", {k: v for k, v in tables.items() if k not in _SECTIONS}, _TOP)
        self.mistakes = [mistake.replace(_known(_TOP), _known(known)) for mistake in self.mistakes]
        self._sections: dict[str, dict[str, Any]] = {}
        for name, kinds in _SECTIONS.items():
            found = tables.get(name, {})
            if not isinstance(found, Mapping):
                self.mistakes.append(f"{name}: a table, not {found!r}")
                found = {}
            self._sections[name] = self._checked(f"{name}.", found, kinds)
        self._given = {name for name in _SECTIONS if name in tables}

    def scenario(self) -> Scenario | None:
        shape = self._shape()
        work = self._workload()
        costs = self._costs()
        estimates = None
        if "estimates" in self._given:
            estimates = self._make("estimates", Estimates, self._sections["estimates"])
        faults = self._make("faults", FaultRates, self._sections["faults"])
        rest = {"name": "scenario", **self._top}
        if "nodes" in self._sections["cells"]:
            rest["nodes_per_cell"] = self._sections["cells"]["nodes"]
        if shape is None or work is None or costs is None or faults is None:
            return None
        if (
            many := shape.group_size * shape.groups_per_batch * (shape.steps or 0)
        ) > MOST_EXECUTIONS:
            most = f"at most {MOST_EXECUTIONS:,} executions in all steps"
            self.mistakes.append(f"schedule.steps: {most}, not {many:,}")
            return None
        return self._make(
            "scenario",
            Scenario,
            {
                **rest,
                "shape": shape,
                "workload": work,
                "costs": costs,
                "estimates": estimates,
                "faults": faults,
            },
        )

    def _shape(self) -> SchedulerConfig | None:
        found = dict(self._sections["schedule"])
        placement = _PLACEMENTS[found.pop("placement", "elastic")]
        streaming = {"streaming": found.pop("streaming")} if "streaming" in found else {}
        if "launch_order" in found:
            found["launch_order"] = _ORDERS[found.pop("launch_order")]()
        dispatch = self._dispatch(found)
        cells = {k: v for k, v in self._sections["cells"].items() if k != "nodes"}
        for key, value in cells.items():
            found[_RENAMED[key]] = tuple(value) if isinstance(value, list) else value
        if dispatch is not None:
            found["dispatch"] = dispatch
        names = _PLACES | {field: f"cells.{key}" for key, field in _RENAMED.items()}
        return self._make(
            "schedule", SchedulerConfig, {**found, "placement": placement(**streaming)}, names
        )

    def _dispatch(self, found: dict[str, Any]) -> Dispatch | None:
        depth, extra = found.pop("depth", None), found.pop("extra_dispatch", None)
        if depth is not None and extra is not None:
            self.mistakes.append(
                "schedule.depth: continuous dispatch, and schedule.extra_dispatch: boundary "
                "dispatch; leave one out"
            )
        if depth is not None:
            return Continuous(depth=depth)
        return None if extra is None else Boundary(extra_dispatch=extra)

    def _workload(self) -> Workload | None:
        found = dict(self._sections["work"])
        parts: dict[str, Any] = {"durations": self._durations(found)}
        for name, part in _WORKLOAD_PARTS.items():
            parts[name] = self._make(name, part, self._sections[name])
        share = {"share": found.pop("decode_share")} if "decode_share" in found else {}
        parts["decode"] = self._make("work", Decode, share)
        if any(part is None for part in parts.values()):
            return None
        return self._make("work", Workload, {**found, **parts})

    def _durations(self, found: dict[str, Any]) -> Durations | None:
        normal: dict[str, Any] = {
            key: found.pop(key) for key in ("log_mean", "sigma") if key in found
        }
        others = {key: found.pop(key) for key in ("quantiles", "recorded_h") if key in found}
        if (1 if normal else 0) + len(others) != 1:
            self.mistakes.append(
                "work: durations come from log_mean and sigma, from quantiles, or from recorded_h; "
                "give one of them"
            )
            return None
        if "quantiles" in others:
            points = tuple(tuple(point) for point in others["quantiles"])
            if any(len(point) != 2 for point in points):
                self.mistakes.append("work.quantiles: pairs of a share and hours")
                return None
            return self._make("work", Quantiles, {"points": points})
        if "recorded_h" in others:
            groups = tuple(tuple(group) for group in others["recorded_h"])
            return self._make("work", ReplayedDurations, {"groups": groups})
        return self._make("work", LogNormal, normal)

    def _costs(self) -> Costs | None:
        found = dict(self._sections["costs"])
        rates: dict[str, Callable[..., ByGroups | ByTokens]] = {
            "groups_per_node_hour": ByGroups,
            "tokens_per_node_s": ByTokens,
        }
        given = [key for key in rates if key in found]
        if len(given) != 1:
            self.mistakes.append(f"costs: give one of {', '.join(rates)}")
            return None
        rate = found.pop(given[0])
        if rate <= 0:
            self.mistakes.append(f"costs.{given[0]}: above 0, not {rate}")
            return None
        return self._make(
            "costs", Costs, {**found, "training": rates[given[0]](**{given[0]: rate})}
        )

    def _make(
        self,
        where: str,
        made: Callable[..., Made],
        found: Mapping[str, Any],
        names: Mapping[str, str] | None = None,
    ) -> Made | None:
        """One of these, or None and why not."""
        missing = [name for name in _required(made) if name not in found]
        for name in missing:
            path = (names or {}).get(name, f"{where}.{name}")
            if path not in self._refused:
                self.mistakes.append(f"{path}: missing")
        if missing:
            return None
        try:
            return made(**found)
        except ConfigError as error:
            for line in str(error).splitlines():
                self.mistakes.append(_placed(line, where, names or {}))
            return None

    def _checked(
        self, prefix: str, found: Mapping[str, Any], kinds: Mapping[str, _Kind]
    ) -> dict[str, Any]:
        good = {}
        for key, value in found.items():
            if key not in kinds:
                self.mistakes.append(f"{prefix}{key}: unknown key; {_known(kinds)}")
            elif not kinds[key].accepts(value):
                self.mistakes.append(f"{prefix}{key}: {kinds[key].expected(value)}, not {value!r}")
                self._refused.add(f"{prefix}{key}")
            else:
                good[key] = value
        return good


def _placed(mistake: str, where: str, names: Mapping[str, str]) -> str:
    """The mistake of a field, said of the key that the field comes from."""
    found = _FIELD.match(mistake)
    if found is None:
        return f"{where}: {mistake}"
    name, index, rest = found.groups()
    path = where if name == where else names.get(name, f"{where}.{name}")
    return f"{path}{index or ''}: {rest}"


def _known(names: Mapping[str, _Kind] | set[str]) -> str:
    return f"known here: {', '.join(sorted(names))}"


def _required(made: Callable[..., Any]) -> Iterator[str]:
    for parameter in fields(made):  # type: ignore[arg-type]
        if parameter.default is MISSING and parameter.default_factory is MISSING:
            yield parameter.name
