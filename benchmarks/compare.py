"""Reads result files, prints goals and tables, and fails when a goal is missed or has slipped.

Rule 1: nothing but raw samples is stored; every number shown is computed here.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
FIELDS = (
    "format",
    "name",
    "at",
    "machine",
    "load_average_before_and_after",
    "python",
    "packages",
    "commit",
    "sources",
    "command",
    "settings",
    "samples",
)
RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
PEERS = ("passthrough", "parse-hash-journal", "gyre", "litellm", "agent-lightning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result file."""

    path: Path
    name: str
    machine: str
    at: str
    samples: dict[str, list[dict[str, Any]]]
    """Per peer (or per case of a micro benchmark): one entry per run."""
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a quantity of the newest result of some name must be."""

    says: str
    name: str
    quantity: str
    least: float | None = None
    most: float | None = None

    def is_met(self, value: float) -> bool:
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)

    @property
    def wanted(self) -> str:
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


GOALS = (
    Goal(
        says="calls per CPU second, as a multiple of litellm's",
        name="short",
        quantity="litellm/gyre",
        least=10,
    ),
    Goal(
        says="CPU of a call on a 900 KB history, as a multiple of parse-hash-journal's",
        name="long",
        quantity="gyre/parse-hash-journal",
        most=2,
    ),
    Goal(
        says="milliseconds added at concurrency 1",
        name="latency",
        quantity="gyre added_ms",
        most=2,
    ),
    Goal(
        says="bytes of resident memory per unique token, 1,000 calls of one execution",
        name="memory",
        quantity="gyre bytes_per_token",
        most=64,
    ),
    Goal(
        says="bytes allocated per unique token, the same",
        name="held",
        quantity="gyre bytes_per_token",
        most=32,
    ),
    Goal(
        says="growth per token in the second half, as a multiple of the first half's",
        name="held",
        quantity="gyre late/early",
        most=1.25,
    ),
    Goal(
        says="executions in flight at once",
        name="many",
        quantity="gyre peak_upstream",
        least=512,
    ),
    Goal(says="calls of theirs that failed", name="many", quantity="gyre failed", most=0),
    Goal(
        says="replies sent before their record was on disk",
        name="syncs",
        quantity="gyre unsynced",
        most=0,
    ),
    Goal(
        says="fdatasync calls per model call, 32 executions at once",
        name="syncs",
        quantity="gyre syncs_per_call",
        most=0.5,
    ),
    Goal(
        says="CPU to encode a 200k-token history, as a multiple of encoding what is new",
        name="encode",
        quantity="everything/bridge",
        least=100,
    ),
    Goal(
        says="GPU: tokens per second of the engine, as a multiple of transformers generate's",
        name="gpu-generate",
        quantity="transformers generate/gyre",
        least=10,
    ),
    Goal(
        says="GPU: the same, of transformers continuous batching's",
        name="gpu-generate",
        quantity="transformers continuous batching/gyre",
        least=10,
    ),
    Goal(
        says="GPU: a training step at 32k tokens, as a multiple of plain transformers' speed",
        name="gpu-step",
        quantity="transformers/gyre",
        least=1.4,
    ),
    Goal(
        says="GPU: its model FLOP utilisation",
        name="gpu-step",
        quantity="gyre mfu",
        least=0.4,
    ),
    Goal(
        says="GPU: plain transformers' peak memory, as a multiple of its",
        name="gpu-step",
        quantity="transformers/gyre memory",
        least=2,
    ),
    Goal(
        says="GPU: shared prefixes once, as a multiple of rows' speed, five trajectories",
        name="gpu-trees",
        quantity="5 trajectories, rows/5 trajectories, tree",
        least=1.25,
    ),
    Goal(
        says="GPU: the same, all trajectories",
        name="gpu-trees",
        quantity="all trajectories, rows/all trajectories, tree",
        least=1.35,
    ),
    Goal(
        says="GPU: the same, five trajectories, layers of an 8B model",
        name="gpu-trees",
        quantity="8B, 5 trajectories, rows/8B, 5 trajectories, tree",
        least=1.25,
    ),
    Goal(
        says="GPU: the same, all trajectories, layers of an 8B model",
        name="gpu-trees",
        quantity="8B, all trajectories, rows/8B, all trajectories, tree",
        least=1.35,
    ),
    Goal(
        says="GPU: seconds from rollout to training",
        name="gpu-switch",
        quantity="to training seconds",
        most=1,
    ),
    Goal(
        says="GPU: seconds from training to rollout",
        name="gpu-switch",
        quantity="to rollout seconds",
        most=1,
    ),
    Goal(
        says="GPU: seconds until a satellite of 0.6B can take a claim (the paper's average)",
        name="gpu-moves",
        quantity="0.6B: to training, satellite, again seconds",
        most=8.52,
    ),
    Goal(
        says="GPU: seconds until it is called home and serves new weights (the paper's average)",
        name="gpu-moves",
        quantity="0.6B: to rollout, satellite with weights, again seconds",
        most=3.46,
    ),
    Goal(
        says="GPU: speed of a hand-off of 32k tokens, as a multiple of computing them again, 1.7B",
        name="gpu-moves",
        quantity="1.7B: prefill of 32,768 tokens, again/1.7B: hand-off of 32,768 tokens, again",
        least=1,
    ),
    Goal(
        says="Live: time to the last step, off the simulator's prediction, elastic",
        name="live-placements",
        quantity="elastic off",
        most=0.05,
    ),
    Goal(
        says="Live: time to the last step, off the simulator's prediction, async",
        name="live-placements",
        quantity="async off",
        most=0.05,
    ),
    Goal(
        says="Live: time to the last step, off the simulator's prediction, colocate",
        name="live-placements",
        quantity="colocate off",
        most=0.05,
    ),
    Goal(
        says="GPU, live: seconds of the best async, as a multiple of elastic's",
        name="gpu-live",
        quantity="async/elastic",
        least=1.4,
    ),
    Goal(
        says="GPU, live: seconds of colocate, as a multiple of elastic's",
        name="gpu-live",
        quantity="colocate/elastic",
        least=1.3,
    ),
    *(
        Goal(
            says=f"GPU, live: time to the last step, off the simulator's prediction, {name}",
            name="gpu-live",
            quantity=f"{name} off",
            most=0.1,
        )
        for name in ("elastic", "async", "colocate")
    ),
    *(
        Goal(
            says=f"GPU, live: calls that failed, {name}",
            name="gpu-live",
            quantity=f"{name} failed_calls",
            most=0,
        )
        for name in ("elastic", "async", "colocate")
    ),
    *(
        Goal(
            says=f"{where}: held-out score that a real model gains by training, five trajectories",
            name=name,
            quantity="J=5 gained",
            least=0.2,
        )
        for where, name in (("GPU", "gpu-learn"), ("CPU", "cpu-learn"))
    ),
    Goal(
        says="Live: executions at once in one run",
        name="live-many",
        quantity="run at_once",
        least=256,
    ),
    Goal(
        says="Live: calls of theirs that failed",
        name="live-many",
        quantity="run failed_calls",
        most=0,
    ),
    Goal(
        says="Quick start: reward of the last batch above the first's, the least of three seeds",
        name="live-quickstart",
        quantity="as earned least_gain",
        least=0.3,
    ),
    Goal(
        says="Quick start: the same with rewards dealt out by chance, the most",
        name="live-quickstart",
        quantity="shuffled most_gain",
        most=0.3,
    ),
    Goal(
        says="Quick start: seconds, the slowest",
        name="live-quickstart",
        quantity="as earned slowest_s",
        most=180,
    ),
    *(
        Goal(
            says=f"Page: 95 % of frames are shorter than so many milliseconds, {act}",
            name="page",
            quantity=f"{act} p95_frame_ms",
            most=50,
        )
        for act in (
            "scrubbing",
            "zooming",
            "scrolling",
            "switching views",
            "following",
            "scrolling that tree",
        )
    ),
    Goal(
        says="CPU of a scheduler's event with 102,400 live executions, as a multiple of with 1,024",
        name="scheduler",
        quantity="live-102400/live-1024",
        most=1.5,
    ),
    Goal(
        says="CPU of an order obeyed with 8,192 live executions, as a multiple of with 512",
        name="scale-controller",
        quantity="event, 8192 live/event, 512 live",
        most=1.5,
    ),
    Goal(
        says="CPU of a short call through a proxy of two processes, as a multiple of one's",
        name="scale-shards",
        quantity="2 shards/1 shard",
        most=1.2,
    ),
    Goal(
        says="Live: seconds until the next controller decides, 512 executions at their calls",
        name="scale-return",
        quantity="512 live back_s",
        most=5,
    ),
    Goal(
        says="Simulated: policies beyond the paper, as a multiple of E0's speed",
        name="sim-policies",
        quantity="as published, decode share 0/overcommit 1.5, longest first, shared prefixes, "
        "decode share 0 hours",
        least=1.15,
    ),
    Goal(
        says="CPU: tokens per second of the engine, as a share of vLLM's, 8 requests",
        name="cpu-generate",
        quantity="vllm, 8 requests/gyre, 8 requests",
        least=0.8,
    ),
    Goal(
        says="CPU: the same, 32 requests",
        name="cpu-generate",
        quantity="vllm, 32 requests/gyre, 32 requests",
        least=0.8,
    ),
)


def load(path: Path) -> Result:
    """A result file; raises ValueError that names the field when it is not one."""
    found = json.loads(path.read_text())
    if missing := [field for field in FIELDS if field not in found]:
        raise ValueError(f"{path.name}: expected the fields {missing}")
    if found["format"] != FORMAT:
        raise ValueError(f"{path.name}: format {found['format']}, expected {FORMAT}")
    slug = found["machine"]["slug"]
    stem = f"{found['at'][:10]}-{slug}-{found['name']}"
    if path.stem != stem and path.stem.rpartition("-")[0] != stem:
        raise ValueError(f"{path.name}: expected a name that begins with {stem}")
    if not found["samples"] or not all(found["samples"].values()):
        raise ValueError(f"{path.name}: samples: expected at least one run of every peer")
    samples = found["samples"] | _simulated(found["settings"])
    return Result(
        path=path,
        name=found["name"],
        machine=slug,
        at=found["at"],
        samples=samples,
        settings=found["settings"],
    )


def _simulated(settings: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What was simulated beside live runs, run by run, as if it had been measured."""
    return {
        f"{name}, simulated": [{"seconds": one} for one in seconds]
        for name, seconds in settings.get("simulated_s", {}).items()
    }


def load_all(folder: Path = RESULTS) -> list[Result]:
    """Every result, oldest first."""
    return sorted((load(path) for path in folder.glob("*.json")), key=lambda one: one.at)


def newest(results: Sequence[Result]) -> dict[str, Result]:
    return {result.name: result for result in results}


def quantities(result: Result) -> dict[str, float]:
    """Every number that may be quoted from a result, by name; medians over runs."""
    found: dict[str, float] = {}
    for peer, runs in result.samples.items():
        for name in runs[0]:
            if (values := _values(name, runs)) is not None:
                found[f"{peer} {name}"] = statistics.median(values)
        found |= {f"{peer} {name}": value for name, value in _derived(runs)}
    costs = [peer for peer in result.samples if f"{peer} cpu_ms" in found]
    for one in costs:
        for other in costs:
            if one != other:
                found[f"{one}/{other}"] = found[f"{one} cpu_ms"] / found[f"{other} cpu_ms"]
    found |= dict(_ratios(found, result.samples))
    return found | dict(_set("setting", result.settings))


def _set(path: str, value: Any) -> Iterator[tuple[str, float]]:
    """Numbers of a setting, by the names that lead to them."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _set(f"{path} {name}", one)
    elif isinstance(value, int | float):
        yield path, value


RATIOS = (
    ("seconds", ""),
    ("hours", " hours"),
    ("peak_bytes", " memory"),
    ("model_flops", " arithmetic"),
    ("passes_s", " passes"),
)
"""Numbers of which one way of the same work may need more than another, and how that is said."""


def _ratios(found: dict[str, float], peers: Iterable[str]) -> Iterator[tuple[str, float]]:
    """How many times the other's one way of the same work takes."""
    for one, other in itertools.permutations(peers, 2):
        for what, says in RATIOS:
            if f"{one} {what}" in found and f"{other} {what}" in found:
                yield f"{one}/{other}{says}", found[f"{one} {what}"] / found[f"{other} {what}"]


def _values(name: str, runs: Sequence[dict[str, Any]]) -> list[float] | None:
    values = [run[name] for run in runs]
    return values if all(isinstance(value, int | float) for value in values) else None


def _derived(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    if "cpu_s" in runs[0]:
        per_call = [run["cpu_s"] / run["calls"] for run in runs]
        yield "cpu_ms", 1000 * statistics.median(per_call)
        yield "calls_per_cpu_s", 1 / statistics.median(per_call)
        yield "spread", (max(per_call) - min(per_call)) / statistics.median(per_call)
    if "through_s" in runs[0]:
        added = [run["through_s"]["p50"] - run["direct_s"]["p50"] for run in runs]
        yield "added_ms", 1000 * statistics.median(added)
    if "latency_s" in runs[0]:
        yield "p50_ms", 1000 * statistics.median(run["latency_s"]["p50"] for run in runs)
        yield "p99_ms", 1000 * statistics.median(run["latency_s"]["p99"] for run in runs)
    if "points" in runs[0]:
        yield from _growth(runs)
    if "peak_bytes" in runs[0]:
        yield "peak_gib", statistics.median(run["peak_bytes"] for run in runs) / 2**30
    if "bytes" in runs[0]:
        yield "gb_per_s", statistics.median(run["bytes"] / run["seconds"] for run in runs) / 1e9
    if "predicted_s" in runs[0]:
        off = [abs(run["predicted_s"] / run["seconds"] - 1) for run in runs]
        yield "off", statistics.median(off)
        yield "most_off", max(off)
    if "failed_calls" in runs[0]:
        yield "failed_calls", max(run["failed_calls"] for run in runs)
    if {"rewards", "seconds"} <= runs[0].keys():
        yield "least_gain", min(run["rewards"][-1] - run["rewards"][0] for run in runs)
        yield "most_gain", max(run["rewards"][-1] - run["rewards"][0] for run in runs)
        yield "slowest_s", max(run["seconds"] for run in runs)
    if "window_steps" in runs[0]:
        yield from _learned(runs)
    if "frames_ms" in runs[0]:
        frames = [sorted(run["frames_ms"]) for run in runs]
        yield "p95_frame_ms", statistics.median(one[int(0.95 * (len(one) - 1))] for one in frames)
        yield "longest_frame_ms", max(one[-1] for one in frames)
    if "floor_s" in runs[0]:
        yield "roofline", statistics.median(run["floor_s"] / run["seconds"] for run in runs)


def _learned(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Means over the steps that every run of the result has taken, or at either end of them.

    Steps whose groups were all of one mind have no gradient and cost nothing: they are left out of
    norms and times.
    """
    for name in ("first_score", "last_score", "before", "after", "gained", "norm", "passes_s"):
        yield name, statistics.median(_learned_of(run)[name] for run in runs)
    for name in ("trajectories", "packed_tokens"):
        yield f"{name}_each", statistics.median(_learned_of(run)[name] for run in runs)
    for version in {one["version"] for run in runs for one in run["held_out"]}:
        rounds = [one for run in runs for one in run["held_out"] if one["version"] == version]
        yield f"held_out_{version}", statistics.median(one["mean"] for one in rounds)
    yield "steps_taken", statistics.median(len(run["scores"]) for run in runs)


def _learned_of(run: dict[str, Any]) -> dict[str, float]:
    window = run["window_steps"]
    trained = [step for step in range(window) if run["executions"][step]]
    executions = sum(run["executions"][step] for step in trained)
    before, after = (run["held_out"][at]["mean"] for at in (0, -1))
    return {
        "first_score": statistics.fmean(run["scores"][:5]),
        "last_score": statistics.fmean(run["scores"][max(0, window - 5) : window]),
        "before": before,
        "after": after,
        "gained": after - before,
        "norm": statistics.fmean(run["gradient_norms"][step] for step in trained),
        "passes_s": statistics.fmean(run["forward_backward_s"][step] for step in trained),
        "trajectories": sum(run["trajectories"][step] for step in trained) / executions,
        "packed_tokens": sum(run["packed_tokens"][step] for step in trained) / executions,
    }


def _growth(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Memory against unique tokens; the first tenth is start-up and left out."""
    measured = "held_bytes" if "held_bytes" in runs[0]["points"][0] else "rss_bytes"
    rise = [run["points"][-1][measured] - run["points"][0][measured] for run in runs]
    yield "grown_mib", statistics.median(rise) / 2**20
    if runs[0]["points"][0]["tokens"] is None:
        return
    grown, bent = [], []
    for run in runs:
        points = run["points"][len(run["points"]) // 10 :]
        first, middle, last = points[0], points[len(points) // 2], points[-1]
        grown.append(_slope(measured, first, last))
        if measured == "held_bytes":
            bent.append(_slope(measured, middle, last) / _slope(measured, first, middle))
    yield "bytes_per_token", statistics.median(grown)
    if bent:
        yield "late/early", statistics.median(bent)


def _slope(measured: str, one: dict[str, int], other: dict[str, int]) -> float:
    return (other[measured] - one[measured]) / (other["tokens"] - one["tokens"])


def summary(results: Sequence[Result]) -> str:
    """Every goal with what was measured, and the newest result of each name, in Markdown."""
    latest = newest(results)
    lines = ["**Goals**", "", "| what | wanted | measured | met |", "|---|---|---|---|"]
    lines += [
        f"| {goal.says} | {goal.wanted} | {_number(value)} | {'yes' if met else '**no**'} |"
        for goal, value, met in judged(results)
    ]
    lines += [f"| {goal.says} | {goal.wanted} | not measured | |" for goal in unjudged(results)]
    links = [f"[{one}](results/{latest[one].path.name})" for one in TITLES if one in latest]
    lines += ["", f"The newest result of each name: {', '.join(links)}."]
    return "\n".join(lines) + "\n"


def tables(results: Sequence[Result]) -> str:
    """What the newest result of each name says of every peer or case, in Markdown."""
    latest = newest(results)
    lines: list[str] = []
    for name, title in TITLES.items():
        if name in latest:
            lines += ["", f"**{title}** ({latest[name].path.name})", ""]
            lines += _rows(latest[name], quantities(latest[name]))
    return "\n".join(lines).strip() + "\n"


TITLES = {
    "short": "Short calls, 16 at once",
    "short-stream": "Short calls, streamed, 16 at once",
    "long": "One more call on a 900 KB history",
    "latency": "One short call at a time",
    "many": "512 executions at once, each held a second by the engine",
    "memory": "1,000 calls of one growing execution, resident memory",
    "held": "1,000 calls of one growing execution, memory allocated",
    "syncs": "Durability, under strace",
    "encode": "Encoding a 200k-token history",
    "match": "Finding the place of a 200k-token history",
    "insert": "Adding a call to a tree",
    "gpu-generate": "256 requests of 256 + 256 tokens on a GPU",
    "gpu-step": "A training step over 32,768 tokens on a GPU",
    "gpu-trees": "Training on an execution shaped like the case study, on a GPU",
    "gpu-switch": "A cell changes its role on a GPU",
    "gpu-agree": "Log-probabilities of engine and trainer on a GPU, bf16",
    "gpu-moves": "Two cells on one GPU: they switch, join, hand over and publish",
    "gpu-learn": "SmolLM2-135M learns to do what letters ask for, by trajectories of an execution",
    "gpu-live": "Live runs on four cells of one GPU, beside the simulator's prediction",
    "cpu-generate": "SmolLM2-135M on a CPU, bf16",
    "cpu-learn": "SmolLM2-135M learns on a CPU, with smaller batches and shorter letters",
    "transports": "Weights from one process of a machine to another",
    "live-placements": "Live runs with emulated durations, beside the simulator's prediction",
    "live-many": "256 executions at once in one live run",
    "live-quickstart": "The quick start over three seeds",
    "page": "The page with 48 steps of 512 executions, frame by frame",
    "scheduler": "The scheduler, by the number of live executions",
    "sim-paper": "The paper's runs in the simulator",
    "sim-policies": "Policies beyond the paper, on its row E0 in the simulator",
    "sim-scale": "The simulator at work",
    "scale-shards": "Short calls, 32 at once, through a proxy of one process and of two",
    "scale-written": "What is written and told",
    "scale-controller": "A controller's own work, by the number of live executions",
    "scale-return": "A controller is killed with executions alive, and the next one returns",
}
COLUMNS = (
    ("cpu_ms", "CPU ms a call"),
    ("calls_per_cpu_s", "calls per CPU second"),
    ("spread", "spread of runs"),
    ("calls_per_s", "calls per second"),
    ("load_cpu_s", "CPU s of the load"),
    ("p50_ms", "p50 ms"),
    ("p99_ms", "p99 ms"),
    ("added_ms", "ms added at p50"),
    ("failed", "failed"),
    ("peak_upstream", "most in flight"),
    ("grown_mib", "MiB grown"),
    ("bytes_per_token", "bytes per unique token"),
    ("late/early", "second half / first"),
    ("replies", "replies"),
    ("unsynced", "sent before durable"),
    ("syncs_per_call", "fdatasync a call"),
    ("seconds", "seconds"),
    ("tokens_per_s", "tokens per second"),
    ("mfu", "model FLOP utilisation"),
    ("peak_gib", "GiB at most"),
    ("roofline", "share of the memory roofline"),
    ("gb_per_s", "GB/s"),
    ("tokens", "tokens"),
    ("max", "largest difference"),
    ("mean", "mean difference"),
    ("hours", "hours"),
    ("staleness", "mean staleness"),
    ("busy", "busy share"),
    ("packing_bound_h", "bound by packing, hours"),
    ("latency_bound_h", "bound by latency, hours"),
    ("executions", "executions"),
    ("events", "events"),
    ("events_per_cpu_s", "events per CPU second"),
    ("rss_mib", "MiB at most"),
    ("predicted_s", "seconds predicted"),
    ("off", "off at the median"),
    ("most_off", "off at most"),
    ("at_once", "at once"),
    ("failed_calls", "failed calls"),
    ("controller_cpu_s", "controller, CPU s"),
    ("controller_peak_mib", "controller, MiB"),
    ("proxy_cpu_s", "proxy, CPU s"),
    ("proxy_peak_mib", "proxy, MiB"),
    ("least_gain", "reward gained at least"),
    ("most_gain", "at most"),
    ("slowest_s", "slowest, seconds"),
    ("first_score", "score of the first 5 steps"),
    ("last_score", "of the last 5 that all runs have taken"),
    ("before", "held-out score before"),
    ("after", "and after"),
    ("norm", "gradient norm"),
    ("passes_s", "forward and backward, s a step"),
    ("trajectories_each", "trajectories of an execution"),
    ("packed_tokens_each", "tokens of an execution, packed"),
    ("look_cpu_s", "looking after them once, CPU s"),
    ("back_s", "seconds until it writes the journal"),
    ("serving_s", "seconds until all cells serve"),
    ("p95_frame_ms", "ms of a frame, 95 % below"),
    ("longest_frame_ms", "ms of the longest frame"),
)


def _rows(result: Result, found: dict[str, float]) -> Iterator[str]:
    ordered = sorted(result.samples, key=lambda one: PEERS.index(one) if one in PEERS else 0)
    shown = [
        (key, title)
        for key, title in COLUMNS
        if any(f"{peer} {key}" in found for peer in result.samples)
    ]
    reference = ordered[0] if f"{ordered[0]} cpu_ms" in found else None
    relative = [f"times {reference}"] if reference is not None and len(ordered) > 1 else []
    yield "| | " + " | ".join([*relative, *(title for _, title in shown)]) + " |"
    yield "|---" * (len(shown) + len(relative) + 1) + "|"
    for peer in ordered:
        cells = [_number(found[key]) if (key := f"{peer} {k}") in found else "" for k, _ in shown]
        if relative:
            cells.insert(0, _number(found[f"{peer}/{reference}"]) if peer != reference else "1")
        yield f"| {peer} | " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    """Three significant digits, and whole numbers whole."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def judged(results: Sequence[Result]) -> Iterator[tuple[Goal, float, bool]]:
    """Every goal whose result is there, with what was measured."""
    latest = newest(results)
    for goal in GOALS:
        if goal.name in latest:
            found = quantities(latest[goal.name])
            if goal.quantity in found:
                yield goal, found[goal.quantity], goal.is_met(found[goal.quantity])


def unjudged(results: Sequence[Result]) -> list[Goal]:
    """Goals that no result speaks of."""
    measured = [goal for goal, _, _ in judged(results)]
    return [goal for goal in GOALS if goal not in measured]


def slipped(results: Sequence[Result]) -> Iterator[str]:
    """Ratios to the floor that are worse than in the result before, by more than their noise."""
    before: dict[tuple[str, str], Result] = {}
    for result in results:
        earlier = before.get((result.name, result.machine))
        before[result.name, result.machine] = result
        if earlier is None or newest(results)[result.name] is not result:
            continue
        old, new = quantities(earlier), quantities(result)
        key, floor = "gyre/parse-hash-journal", "parse-hash-journal spread"
        if key in old and key in new:
            spreads = (old["gyre spread"], new["gyre spread"], old[floor], new[floor])
            if new[key] > old[key] * (1 + max(spreads)):
                yield f"{result.path.name}: {key} was {old[key]:.2f}, is {new[key]:.2f}"


def with_summary(readme: str, results: Sequence[Result]) -> str:
    """The README with the summary of these results between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{summary(results)}{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to read")
    parser.add_argument("--write", action="store_true", help="put the goals into README.md")
    args = parser.parse_args()
    results = load_all(args.results)
    print(summary(results), tables(results), sep="\n")
    if args.write:
        README.write_text(with_summary(README.read_text(), results))
    missed = [f"goal missed: {goal.says}" for goal, _, met in judged(results) if not met]
    missed += slipped(results)
    print("\n".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
