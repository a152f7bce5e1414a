"""What is new in a story since it was last asked, in words: steps, weights, scores, faults."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gyre.observability.history.run import RunHistory
from gyre.observability.history.steps import StepRecord, TimedFact
from gyre.observability.terminal.text import sized, spoken
from gyre.types.run_events import CheckpointMade, EvaluationRound, WeightsPublished

MOST_LINES = 50


@dataclass(slots=True)
class NewsCursor:
    """How much of a story somebody has been told."""

    steps: int = 0
    publications: int = 0
    checkpoints: int = 0
    rounds: int = 0
    faults: int = 0

    def lines(self, story: RunHistory) -> list[dict[str, Any]]:
        """In order of time, the last of them where there are many."""
        found = sorted(self._found(story), key=lambda pair: pair[0])
        self.steps = len(story.steps.rows)
        self.publications = len(story.steps.publications)
        self.checkpoints = len(story.steps.checkpoints)
        self.rounds = len(story.steps.rounds)
        self.faults = len(story.faults.rows)
        return [{"at_s": at_s, "text": text} for at_s, text in found[-MOST_LINES:]]

    def _found(self, story: RunHistory) -> Iterator[tuple[float, str]]:
        for step in story.steps.rows[self.steps :]:
            yield step.at_s, _step(step)
        for one in story.steps.publications[self.publications :]:
            yield one.at_s, _published(one)
        for one in story.steps.checkpoints[self.checkpoints :]:
            yield one.at_s, _kept(one)
        for one in story.steps.rounds[self.rounds :]:
            yield one.at_s, _scored(one)
        for fault in story.faults.rows[self.faults :]:
            yield fault.at_s, fault.text


def _step(step: StepRecord) -> str:
    said = [f"step {step.number} taken after {spoken(step.took_s)}"]
    if step.made is not None and step.made.reward is not None:
        said.append(f"reward {step.made.reward:.3f}")
    if step.staleness is not None:
        said.append(f"staleness {step.staleness:.2f}")
    return ", ".join(said)


def _published(one: TimedFact) -> str:
    fact = one.fact
    assert isinstance(fact, WeightsPublished)
    took = spoken(fact.save_s + fact.load_s)
    return f"version {fact.version} published, {sized(fact.num_bytes)} in {took}"


def _kept(one: TimedFact) -> str:
    fact = one.fact
    assert isinstance(fact, CheckpointMade)
    took = f"{sized(fact.num_bytes)} in {spoken(fact.seconds)}"
    return f"checkpoint of version {fact.version} is durable, {took}"


def _scored(one: TimedFact) -> str:
    fact = one.fact
    assert isinstance(fact, EvaluationRound)
    score = "no valid score" if fact.mean is None else f"{fact.mean:.3f}"
    return f"held-out evaluation of version {fact.version}: {score}"
