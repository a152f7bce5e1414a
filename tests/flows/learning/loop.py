"""On-policy learning in one process: sample, record, draw, pack, train, load; then again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.flows.learning.task import TOOL, Talk, journeys, travel

from gyre.backends.renderers.load import load_renderer
from gyre.engine.loop import Loop
from gyre.engine.reports import Said
from gyre.model.known import model_folder
from gyre.model.load import load_network
from gyre.model.weights import digest
from gyre.proxy.chat import Chat
from gyre.proxy.sampled import Sampled
from gyre.proxy.session import Pending, Session
from gyre.stream.packing import Admitted, pack
from gyre.train.cell import LocalTrainer
from gyre.train.objective import advantages
from gyre.tree.draw import draw, generator
from gyre.tree.rows import Row, row
from gyre.words.ids import EngineName, ExecutionId
from gyre.words.ports import Renderer
from gyre.words.records import CallDelivered, LogOpened
from gyre.words.roles import Classified
from gyre.words.samples import Ask, Chunk, Sampling
from gyre.words.sections import (
    EngineSection,
    ObjectiveSection,
    OptimizerSection,
    TrainerSection,
)

ENGINE = EngineName("engine")
MAIN = Classified(role="main", harness="test")
DIALECT = Chat()
SAMPLING = Sampling(max_tokens=32)
CONTEXT_TOKENS = 256

Judge = Callable[[Sequence[float], Random], list[float]]


def as_earned(rewards: Sequence[float], rng: Random) -> list[float]:
    return list(rewards)


def shuffled(rewards: Sequence[float], rng: Random) -> list[float]:
    """Everybody's reward goes to somebody."""
    return rng.sample(rewards, len(rewards))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a curve depends on."""

    model: str = "tiny"
    seed: int = 0
    groups_per_batch: int = 8
    executions_per_group: int = 8
    lr: float = 1e-3
    judge: Judge = as_earned


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One batch and the update it made."""

    reward: float
    """Mean over all executions, as earned."""
    loss: float
    max_gap: float | None
    """Largest |log-probability of the trainer - of the engine|; None without targets."""
    versions: tuple[int, ...]
    """Of the weights that sampled the targets."""
    num_targets: int
    saved_fraction: float | None
    """Tokens that trees saved over rows."""


class Execution:
    """One attempt: an agent program, and the session that records what it does."""

    def __init__(self, name: str, talk: Talk, renderer: Renderer) -> None:
        self.name = ExecutionId(name)
        self.reward: float | None = None
        self._talk = talk
        opened = LogOpened(
            format=1,
            execution=self.name,
            key_hash=b"",
            salt=name.encode(),
            model="policy",
            renderer=renderer.name,
            at=0.0,
        )
        self._session = Session(opened, renderer, sampling=SAMPLING, context_tokens=CONTEXT_TOKENS)
        self._session.apply(opened)
        self._pending = self._position(next(talk))
        self._sampled = Sampled(self._pending.sampling)

    @property
    def ask(self) -> Ask:
        """The call that waits for its output."""
        return Ask(
            id=f"{self.name}/{len(self._session.tree.calls)}",
            input_ids=self._pending.prompt.ids.tobytes(),
            sampling=self._pending.sampling,
            execution=self.name,
        )

    def take(self, chunk: Chunk) -> bool:
        """Adds what was sampled; whether the agent makes another call because of it."""
        self._sampled.take(ENGINE, chunk)
        if chunk.finish is None:
            return False
        session, pending = self._session, self._pending
        opened = session.open_call(pending, 0.0)
        for record in (*pending.echoed, opened):
            session.apply(record)
        output = self._sampled.output(engine_s=0.0, attempts=1)
        closed, reply = session.close_call(pending, opened, output, 0.0)
        session.apply(closed)
        session.apply(CallDelivered(call=opened.call))
        said = json.loads(DIALECT.body([reply], self._wire))["choices"][0]["message"]
        try:
            self._pending = self._position(self._talk.send(said))
        except StopIteration as ended:
            self.reward = ended.value
            return False
        self._sampled = Sampled(self._pending.sampling)
        return True

    def rows(self, seed: int) -> tuple[Row, ...]:
        """What is trained of it."""
        tree = self._session.tree
        return tuple(row(tree, one) for one in draw(tree, generator(seed, self.name)))

    def _position(self, messages: list[dict[str, object]]) -> Pending:
        body = json.dumps({"model": "policy", "messages": messages, "tools": [TOOL]})
        self._wire = DIALECT.split(body.encode())
        return self._session.position(DIALECT, self._wire, MAIN)


class Learner:
    """An engine and a trainer that begin with the same weights."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._rng = Random(settings.seed)
        self._renderer = load_renderer(str(model_folder(settings.model)))
        self._loop = Loop(
            load_network(settings.model),
            EngineSection(kv_tokens=64 * CONTEXT_TOKENS),
            model=settings.model,
            seed=settings.seed,
        )
        self._trainer = LocalTrainer(
            load_network(settings.model),
            section=TrainerSection(pack_tokens=4096, checkpoint=False, deterministic=True),
            objective=ObjectiveSection(),
            optimizer=OptimizerSection(lr=settings.lr),
        )

    @property
    def digest(self) -> str:
        """Of the weights that are served."""
        return digest(self._trainer.network)

    def step(self) -> Step:
        """One batch, sampled and trained by the same weights; the engine then has the new ones."""
        groups = self._groups()
        flat = [one for group in groups for one in group]
        self._sample(flat)
        rewards = [one.reward for one in flat if one.reward is not None]
        given = dict(zip(flat, self.settings.judge(rewards, self._rng), strict=True))
        admitted = []
        for group in groups:
            found = advantages([given[one] for one in group], divide_by_std=True)
            for one, advantage in zip(group, found, strict=True):
                rows = one.rows(self.settings.seed)
                admitted.append(Admitted(execution=one.name, advantage=advantage, rows=rows))
        return self._train(admitted, sum(rewards) / len(rewards))

    def _groups(self) -> list[list[Execution]]:
        version, settings = self._trainer.version, self.settings
        return [
            [
                Execution(f"{version}/{group}/{number}", travel(journey), self._renderer)
                for number in range(settings.executions_per_group)
            ]
            for group, journey in enumerate(journeys(self._rng, settings.groups_per_batch))
        ]

    def _sample(self, executions: Sequence[Execution]) -> None:
        """Every agent runs to its end, all of them at once."""
        asking = {one.ask.id: one for one in executions}
        for one in executions:
            self._loop.submit(one.ask)
        while self._loop.has_calls:
            for report in self._loop.step():
                assert isinstance(report, Said), report
                one = asking[report.id]
                if one.take(report.chunk):
                    ask = one.ask
                    asking[ask.id] = one
                    self._loop.submit(ask)

    def _train(self, admitted: Sequence[Admitted], reward: float) -> Step:
        packing = pack(admitted, pack_tokens=4096, sharing=True)
        reports = [
            self._trainer.train(claim, num_executions=len(admitted)) for claim in packing.claims
        ]
        self._trainer.step()
        weights = dict(self._trainer.network.module.named_parameters())
        self._loop.load(weights, version=self._trainer.version)
        gaps = [one.measures.max_gap for one in reports if one.measures.max_gap is not None]
        versions = {
            int(version) for one in admitted for each in one.rows for version in each.versions
        }
        return Step(
            reward=reward,
            loss=sum(one.loss for one in reports),
            max_gap=max(gaps, default=None),
            versions=tuple(sorted(versions)),
            num_targets=packing.num_targets,
            saved_fraction=packing.saved_fraction,
        )


def learn(settings: Settings, num_steps: int) -> tuple[list[Step], str]:
    """That many steps, and the digest of the weights after them."""
    learner = Learner(settings)
    return [learner.step() for _ in range(num_steps)], learner.digest
