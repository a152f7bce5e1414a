"""On-policy learning in one process: sample, record, draw, pack, train, load; then again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from tests.flows.learning.task import TOOL, Talk, journeys, travel

from gyre.batching.advantages import advantages
from gyre.batching.packing import AdmittedExecution, pack
from gyre.config.sections import EngineConfig, LossConfig, OptimizerConfig, TrainerConfig
from gyre.inference.engine.engine import EngineCore
from gyre.inference.engine.request import RequestOutput
from gyre.model.loader import load_network
from gyre.model.registry import model_folder
from gyre.model.weights import digest
from gyre.proxy.dialects.openai_chat import OpenAIChat
from gyre.proxy.routing.call_output import CallOutput
from gyre.proxy.session.session import PositionedRequest, Session
from gyre.renderers.registry import load_renderer
from gyre.trainer.trainer import Trainer
from gyre.trajectory.selection import Row, generator, row, select_trajectories
from gyre.types.call_records import CallDelivered, Classification, LogOpened
from gyre.types.ids import EngineName, ExecutionId
from gyre.types.protocols import Renderer
from gyre.types.sampling import Chunk, GenerateRequest, SamplingParams
from gyre.types.training import ClaimReport

MODEL = "tiny"
ENGINE = EngineName("engine")
MAIN = Classification(role="main", harness="test")
DIALECT = OpenAIChat()
SAMPLING = SamplingParams(max_tokens=32)
CONTEXT_TOKENS = 256
PACK_TOKENS = 4096

Judge = Callable[[Sequence[float], Random], list[float]]
"""Rewards as they were earned become rewards as they are trained on."""


def as_earned(rewards: Sequence[float], rng: Random) -> list[float]:
    return list(rewards)


def shuffled(rewards: Sequence[float], rng: Random) -> list[float]:
    """Everybody's reward goes to somebody."""
    return rng.sample(rewards, len(rewards))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a curve depends on, besides the model."""

    seed: int = 0
    groups_per_batch: int = 8
    """B: a multiple of the number of lines, so that none is begun with more often."""
    executions_per_group: int = 16
    """N."""
    lr: float = 3e-4
    judge: Judge = as_earned
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One batch and the update it made."""

    reward: float
    """Mean over all executions, as earned."""
    loss: float
    max_gap: float
    """Largest |log-probability of the trainer - of the engine| of a target; 0 without any."""
    max_log_ratio: float
    """Largest |log s_i| of an execution; 0 without any."""
    versions: frozenset[int]
    """Of the weights that sampled the batch."""
    saved_fraction: float | None
    """Tokens that trees need not compute; None where nothing is computed."""


class Execution:
    """One attempt: an agent program, and the session that records what it does."""

    def __init__(self, name: str, talk: Talk, renderer: Renderer) -> None:
        self.name = ExecutionId(name)
        self.reward: float | None = None
        opened = LogOpened(
            format=1,
            execution=self.name,
            key_hash=bytes(32),
            salt=bytes(16),
            model=MODEL,
            renderer=renderer.name,
            at=0.0,
        )
        self._talk = talk
        self._session = Session(opened, renderer, sampling=SAMPLING, context_tokens=CONTEXT_TOKENS)
        self._session.apply(opened)
        self._position(next(talk))

    @property
    def ask(self) -> GenerateRequest:
        """The call that waits for its output."""
        return GenerateRequest(
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
        try:
            self._position(self._talk.send(self._record()))
        except StopIteration as ended:
            self.reward = ended.value
            return False
        return True

    def rows(self, seed: int) -> tuple[Row, ...]:
        """What is trained of it."""
        tree = self._session.tree
        return tuple(
            row(tree, one) for one in select_trajectories(tree, generator(seed, self.name))
        )

    def _position(self, messages: list[dict[str, object]]) -> None:
        body = json.dumps({"model": MODEL, "messages": messages, "tools": [TOOL]})
        self._wire = DIALECT.split(body.encode())
        self._pending: PositionedRequest = self._session.position(DIALECT, self._wire, MAIN)
        self._sampled = CallOutput(self._pending.sampling)

    def _record(self) -> dict[str, object]:
        """The call is in the tree; the message is what its client got."""
        session, pending = self._session, self._pending
        opened = session.open_call(pending, 0.0)
        output = self._sampled.output(engine_s=0.0, attempts=1)
        closed, reply = session.close_call(pending, opened, output, 0.0)
        assert ((), None) == (closed.flags, closed.fork)
        for record in (*pending.place.echoed, opened, closed, CallDelivered(call=opened.call)):
            session.apply(record)
        (choice,) = json.loads(DIALECT.body([reply], self._wire))["choices"]
        return choice["message"]


class Learner:
    """An engine and a trainer that begin with the same weights, each with its own copy."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rng = Random(settings.seed)
        self._renderer = load_renderer(str(model_folder(MODEL)))
        self._loop = EngineCore(
            load_network(MODEL, dtype=settings.dtype),
            EngineConfig(kv_tokens=64 * CONTEXT_TOKENS),
            model=MODEL,
            seed=settings.seed,
        )
        self._trainer = Trainer(
            load_network(MODEL, dtype=settings.dtype),
            section=TrainerConfig(checkpoint=False, deterministic=True),
            objective=LossConfig(),
            optimizer=OptimizerConfig(lr=settings.lr),
        )

    @property
    def digest(self) -> str:
        """Of the trainer's weights."""
        return digest(self._trainer.network)

    def step(self) -> Step:
        """One batch, sampled and trained by the same weights; the engine then has the new ones."""
        groups = self._groups()
        self._sample([one for group in groups for one in group])
        earned = [one.reward for group in groups for one in group]
        given = iter(self._settings.judge(earned, self._rng))
        admitted: list[AdmittedExecution] = []
        for group in groups:
            found = advantages([next(given) for _ in group], divide_by_std=True)
            for one, advantage in zip(group, found, strict=True):
                rows = one.rows(self._settings.seed)
                admitted.append(
                    AdmittedExecution(execution=one.name, advantage=advantage, rows=rows)
                )
        return self._train(admitted, reward=sum(earned) / len(earned))

    def _groups(self) -> list[list[Execution]]:
        version, settings = self._trainer.version, self._settings
        return [
            [
                Execution(f"{version}/{group}/{number}", travel(journey), self._renderer)
                for number in range(settings.executions_per_group)
            ]
            for group, journey in enumerate(journeys(self._rng, settings.groups_per_batch))
        ]

    def _sample(self, executions: Sequence[Execution]) -> None:
        """Every agent runs to its end, all of them at once."""
        waiting: dict[str, Execution] = {}

        def submit(one: Execution) -> None:
            ask = one.ask
            waiting[ask.id] = one
            self._loop.submit(ask)

        for one in executions:
            submit(one)
        while self._loop.has_calls:
            for report in self._loop.step():
                assert isinstance(report, RequestOutput), report
                one = waiting[report.id]
                if one.take(report.chunk):
                    submit(one)

    def _train(self, admitted: Sequence[AdmittedExecution], *, reward: float) -> Step:
        packing = pack(admitted, pack_tokens=PACK_TOKENS, sharing=True)
        reports = [
            self._trainer.train(claim, num_executions=len(admitted)) for claim in packing.claims
        ]
        self._trainer.step()
        weights = dict(self._trainer.network.module.named_parameters())
        self._loop.load(weights, version=self._trainer.version)
        return Step(
            reward=reward,
            loss=sum(one.loss for one in reports),
            max_gap=max((one.measures.max_gap or 0.0 for one in reports), default=0.0),
            max_log_ratio=max(_log_ratios(reports), default=0.0),
            versions=frozenset(
                int(version) for one in admitted for each in one.rows for version in each.versions
            ),
            saved_fraction=(
                1 - packing.num_tokens / packing.row_tokens if packing.row_tokens else None
            ),
        )


def _log_ratios(reports: Sequence[ClaimReport]) -> list[float]:
    return [abs(one.sum_log_ratio) / one.count for report in reports for one in report.scores]


def learn(settings: Settings, num_steps: int) -> tuple[list[Step], str]:
    """That many steps from the model as it is, and the digest of the weights after them."""
    learner = Learner(settings)
    return [learner.step() for _ in range(num_steps)], learner.digest
