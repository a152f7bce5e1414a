"""One rank of a cell as a process: it meets the others at a file and does what its plans say.

A nursery forks it with RANK SIZE FOLDER KIND:STAGESxSHARDS:DETAIL ...
"""

import dataclasses
import json
import os
import warnings
from collections import deque
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.trainer.support import cases
from tests.waiting import PATIENCE_S, patience
from torch.distributed import FileStore

from gyre.cell.ranks.driver import MicroStepStream, PendingClaim
from gyre.config.sections import TrainerConfig
from gyre.trainer.distributed.pipeline import MicroStep, Pipeline, StreamEnd
from gyre.trainer.distributed.pipeline_stage import PipelineStage
from gyre.trainer.distributed.rank_comm import RankComm, RankPosition
from gyre.trainer.distributed.rank_trainer import ParameterShards, RankTrainer
from gyre.trainer.distributed.tensor_parallel import split_network
from gyre.trainer.loss import add_scores
from gyre.trainer.optimizer import OptimizerState
from gyre.types.errors import CellError

SILENT_S = patience(3.0)
"""After which a rank is given up in the test of that."""
CPU = torch.device("cpu")
PAUSE, CLOSE = StreamEnd.PAUSED, StreamEnd.CLOSED
SECTION = TrainerConfig(logits_tokens=5, checkpoint=False)


class Script:
    """A source that says what it was told to, and keeps what came of it."""

    def __init__(self, items):
        self.items = list(items)
        self.results = []

    def take(self):
        """The next item; a pause stays until it is lifted."""
        if not self.items:
            return CLOSE
        return PAUSE if self.items[0] is PAUSE else self.items.pop(0)

    def finished(self, result):
        self.results.append(result)

    def lift(self):
        self.items.pop(0)


class Claims:
    """Claims of one batch, and the source of micro-steps that a cell makes of them."""

    def __init__(self):
        self._waiting, self._claimed = deque(), []
        self.source = MicroStepStream(
            cases.SECTION, lambda: self._waiting.popleft() if self._waiting else None, set()
        )

    def add(self, claim):
        lease, num_executions = len(self._claimed), cases.NUM_EXECUTIONS
        one = PendingClaim(claim=claim, num_executions=num_executions, lease=lease, scores=None)
        self._waiting.append(one)
        self._claimed.append(one)

    def end(self):
        self.source.is_closing = True

    @property
    def trained(self):
        """What those came to that are through; none of a rank that only follows."""
        return [one.done.result() for one in self._claimed if one.done.done()]


class Rank:
    """One process of a cell, which has another place in it for each plan."""

    def __init__(self, rank, size, folder):
        self.rank = rank
        self.folder = Path(folder)
        self.store = FileStore(str(self.folder / "store"), size)
        self.epoch = 0
        self.plan = self.place = None

    def lines(self, timeout_s=PATIENCE_S):
        """All ranks have theirs; a rank that stands still for a short time-out is met anew."""
        lines = None
        while lines is None:
            self.epoch += 1
            # First they are all there, so that no time-out is of the one that comes last.
            self.told("there")
            try:
                lines = RankComm(
                    self.store, self.place, device=CPU, timeout_s=timeout_s, epoch=self.epoch
                )
            except CellError:
                if timeout_s >= PATIENCE_S:
                    raise
            if "alone" in self.told("met", "alone" if lines is None else "met"):
                lines = None
        return lines

    def told(self, what, word="here"):
        """What all ranks say, once all have."""
        names = [f"{what}-{self.epoch}-{rank}" for rank in range(self.place.size)]
        self.store.set(names[self.rank], word)
        self.store.wait(names, timedelta(seconds=PATIENCE_S))
        return [self.store.get(one).decode() for one in names]

    def build(self, family, timeout_s=PATIENCE_S):
        lines = self.lines(timeout_s)
        network = cases.network(family)
        claim = cases.claim(network)
        shards = {"shard": self.place.shard, "shards": self.place.shards}
        split = split_network(network, lines.within, **shards)
        stage = PipelineStage(network, self.place, SECTION)
        return claim, Pipeline(stage, lines, cases.SECTION), stage, split, lines

    def stream(self, pipeline, items):
        """Everything in the script, by the driver; whatever it says, by the others."""
        script = Script(items)
        ends = []
        while not ends or ends[-1] != "CLOSED":
            ended = pipeline.drive(script) if self.place.is_driver else pipeline.follow()
            ends.append(ended.name)
            if self.place.is_driver and ended is PAUSE:
                script.lift()
        return script.results, ends

    def say(self, facts, tensors=None, about=""):
        name = f"{self.plan}{about}-{self.rank}"
        if tensors:
            held = {key: one.detach().clone().contiguous() for key, one in tensors.items()}
            save_file(held, self.folder / f"{name}.safetensors")
        (self.folder / f"{name}.json").write_text(json.dumps(facts))


def steps(claim, scores):
    return [
        MicroStep(
            pack=pack, shares=claim.shares, num_executions=cases.NUM_EXECUTIONS, scores=scores
        )
        for pack in claim.packs
    ]


def train(rank, family):
    """Scores first, then two batches of the same, the second with pauses in it."""
    claim, pipeline, stage, split, lines = rank.build(family)
    holdings = ParameterShards(stage, split, lines)
    parameters = dict(stage.network.module.named_parameters())
    scored, _ = rank.stream(pipeline, steps(claim, None))
    scores = add_scores([one.scores for one in scored]) if scored else None
    gradients = []
    for pauses in (False, True):
        items = steps(claim, scores)
        if pauses:
            items[3:3] = [steps(claim, None)[0], PAUSE, PAUSE]
            items[1:1] = [PAUSE]
        stage.network.module.zero_grad()
        trained, ends = rank.stream(pipeline, items)
        gradients.append({name: one.grad for name, one in parameters.items()})
        holdings.settle(gradients[-1])
    facts = {
        "losses": [one.loss for one in trained],
        "scores": [[one.sum_log_ratio, one.count] for one in scores or ()],
        "measures": [dataclasses.asdict(one.measures) for one in trained],
        "ends": ends,
        "norm": holdings.norm(gradients[-1]),
        "in_flight": pipeline.in_flight,
        "dims": dict(split.dims),
        "paused_alike": all(gradients[0][name].equal(gradients[1][name]) for name in parameters),
    }
    rank.say(facts, gradients[-1])
    rank.say({}, holdings.whole(), "-whole")
    with torch.no_grad():
        for one in parameters.values():
            one.add_(1.0)
    holdings.take(dict(cases.network(family).module.state_dict()))
    rank.say({}, parameters, "-taken")


def step(rank, family):
    """Two updates from claims that are scored, released and trained, the second one late."""
    network = cases.network(family)
    claims = [cases.claim(network, seed) for seed in (5, 6)]
    section = dataclasses.replace(SECTION, checkpoint=True)
    trainer = RankTrainer(
        network, rank.lines(), section=section, objective=cases.SECTION, optimizer=cases.OPTIMIZER
    )
    facts = {"ends": [], "losses": [], "skipped": [], "norms": [], "measures": []}
    for _ in range(2):
        batch = Claims()
        for index, claim in enumerate(claims):
            batch.add(claim)
            if index:
                batch.end()
            ended = trainer.drive(batch.source) if rank.place.is_driver else trainer.follow()
            facts["ends"].append(ended.name)
        facts["norms"].append(trainer.step().gradient_norm)
        facts["losses"].append(sum(one.loss for one in batch.trained))
        facts["skipped"] += [one.num_skipped for one in batch.trained]
        facts["measures"] += [dataclasses.asdict(one.measures) for one in batch.trained]
    rank.say(facts, trainer.whole_weights())
    assert trainer.version == 2


def stop(rank, family):
    """A batch with weights that are no numbers, forgotten, and one with the right ones."""
    network = cases.network(family)
    whole = dict(cases.network(family).module.state_dict())
    claims = [cases.claim(network, seed) for seed in (5, 6)]
    trainer = RankTrainer(
        network,
        rank.lines(),
        section=SECTION,
        objective=cases.SECTION,
        optimizer=cases.OPTIMIZER,
    )
    facts = {"errors": [], "ends": []}
    for factor in (float("nan"), 1.0):
        poisoned = whole | {"model.norm.weight": whole["model.norm.weight"] * factor}
        trainer.load_weights(poisoned, version=0)
        batch = Claims()
        for claim in claims:
            batch.add(claim)
        batch.end()
        try:
            ended = trainer.drive(batch.source) if rank.place.is_driver else trainer.follow()
            facts["ends"].append(ended.name)
        except CellError as error:
            facts["errors"].append(f"{type(error).__name__}: {error}")
        if factor != 1.0:
            trainer.clear()
    facts["version"] = trainer.step().version
    rank.say(facts, trainer.whole_weights())


def fail(rank, poison):
    """A batch that cannot be is refused on the driver, and the one after it goes through."""
    claim, pipeline, stage, *_ = rank.build("llama")
    good = steps(claim, None)
    bad = list(good)
    parameters = dict(stage.network.module.named_parameters())
    norm = parameters.get("model.norm.weight", torch.zeros(()))
    value = norm.detach().clone()
    if poison == "nan":
        norm.data.fill_(float("nan"))
    else:
        wrong = dataclasses.replace(good[2].pack, ids=good[2].pack.ids + 61)
        bad[2] = dataclasses.replace(good[2], pack=wrong)
    error, ends = None, []
    try:
        _, ends = rank.stream(pipeline, bad)
    except CellError as raised:
        error = f"{type(raised).__name__}: {raised}"
    norm.data.copy_(value)
    results, again = rank.stream(pipeline, good)
    rank.say({"error": error, "ends": ends, "again": again, "results": len(results)})


def lose(rank, how):
    """The last rank dies, or falls silent, in the middle of a batch."""
    claim, pipeline, *_ = rank.build("llama", PATIENCE_S if how == "dies" else SILENT_S)
    if rank.rank == rank.place.size - 1:
        if how == "dies":
            pipeline.follow()
            os._exit(0)
        rank.store.wait([rank.plan], timedelta(seconds=PATIENCE_S))
        return
    script = Script([*steps(claim, None)[:2], PAUSE, *steps(claim, None)[:2]])
    errors = []
    for _ in range(3):
        try:
            pipeline.drive(script)
            script.lift()
        except CellError as error:
            errors.append(str(error))
    rank.store.set(rank.plan, "over")
    rank.say({"errors": errors})


def a_trainer(rank, family, **changes):
    network = cases.network(family)
    claims = [cases.claim(network, seed) for seed in (5, 6)]
    trainer = RankTrainer(
        network,
        rank.lines(),
        section=dataclasses.replace(SECTION, **changes),
        objective=cases.SECTION,
        optimizer=cases.OPTIMIZER,
    )
    return trainer, claims


def through(rank, trainer, *claims, ends=True):
    """All claims, to the end of their stream or to a pause in it."""
    batch = Claims()
    for claim in claims:
        batch.add(claim)
    if ends:
        batch.end()
    return trainer.drive(batch.source) if rank.place.is_driver else trainer.follow()


def refusal(work):
    try:
        work()
    except CellError as error:
        return f"{type(error).__name__}: {error}"
    return None


def rest(rank, family):
    """Scores, a rest between two claims of a batch, and two more updates from what was exported."""
    kind, _, exact = family.partition("+")
    trainer, (first, second) = a_trainer(rank, kind, deterministic=bool(exact))
    facts = {"norms": [], "scores": None}
    through(rank, trainer, first, ends=False)
    facts["paused"] = refusal(trainer.offload)
    if rank.place.is_driver:
        facts["scores"] = [[one.sum_log_ratio, one.count] for one in trainer.score(second)]
    else:
        trainer.follow()
    for _ in range(2):
        trainer.offload(weights=True)
    asked = [trainer.step, lambda: through(rank, trainer, second)]
    facts["resting"] = [trainer.is_resting, *(refusal(one) for one in asked)]
    at_rest = {name: one.clone() for name, one in trainer.export().tensors.items()}
    for _ in range(2):
        trainer.reload()
    awake = trainer.export().tensors
    facts["exported"] = at_rest.keys() == awake.keys() and all(
        torch.equal(one, awake[name]) for name, one in at_rest.items()
    )
    through(rank, trainer, second)
    facts["norms"].append(trainer.step().gradient_norm)
    state = trainer.export()
    held = {name: one.clone() for name, one in state.tensors.items()}
    other, _ = a_trainer(rank, kind, deterministic=bool(exact))
    other.load(OptimizerState(num_steps=state.num_steps, tensors=held), version=trainer.version)
    for one in (trainer, other):
        through(rank, one, first, second)
        facts["norms"].append(one.step().gradient_norm)
        facts["version"] = one.version
        rank.say({}, one.whole_weights(), "-first" if one is trainer else "-other")
    rank.say(facts)


def exact(rank, family):
    """Both orders of two claims, halves put together, and a gradient beyond all sums."""
    trainer, claims = a_trainer(rank, family, deterministic=True)
    sums = []
    for order in (claims, claims[::-1]):
        through(rank, trainer, *order)
        sums.append([flat.clone() for flat in trainer.gradients])
        trainer.clear()
    halves = []
    for claim in claims:
        through(rank, trainer, claim)
        halves.append([flat.clone() for flat in trainer.gradients])
        trainer.clear()
    trainer.replace_gradients([one + other for one, other in zip(*halves, strict=True)])
    sums.append([flat.clone() for flat in trainer.gradients])
    facts = {"alike": [all(map(torch.equal, sums[0], one)) for one in sums]}
    trainer.clear()
    if rank.place.is_last:
        parameter = trainer.network.module.get_parameter("model.norm.weight")
        hook = parameter.register_hook(lambda gradient: gradient * 1e12)
    through(rank, trainer, *claims)
    facts["error"] = refusal(trainer.step)
    facts["asked"] = refusal(lambda: trainer.gradients)
    if rank.place.is_last:
        hook.remove()
    trainer.clear()
    through(rank, trainer, *claims)
    trainer.step()
    rank.say(facts, trainer.whole_weights())


PLANS = {
    "train": train,
    "step": step,
    "stop": stop,
    "fail": fail,
    "lose": lose,
    "rest": rest,
    "exact": exact,
}


def main(rank, size, folder, *plans):
    one = Rank(int(rank), int(size), folder)
    for plan in plans:
        kind, layout, detail = plan.split(":")
        stages, shards = map(int, layout.split("x"))
        one.plan = plan.replace(":", "-")
        one.place = RankPosition.of(one.rank, stages=stages, shards=shards)
        PLANS[kind](one, detail)


def run_forked(arguments, told):
    """The same in a process that a nursery forked."""
    warnings.simplefilter("error")
    main(*arguments)
    return 0
