"""What is true of a simulated run, kept by those who cannot be mistaken, and what must hold of it.

Tokens are known by their log-probabilities, of which each is given once; so every target of every
gradient is traced back to the one token that an engine emitted (I5), in the execution it was for.
"""

from collections import Counter
from dataclasses import dataclass

from tests.chaos_sim.proxies import reply_of
from tests.chaos_sim.weights import FIRST, next_weights

from gyre.types.errors import CellError, CheckpointError
from gyre.types.outcomes import Closed, Launched, Outcome, Terminated

MOST_FAILED = 2
"""Of one order to one cell, in a row: a core that fails for the third time stops the run, as it
should (SPEC 2.1), and every run of the simulation comes to its end."""
UNIT = 2.0**-20
"""Log-probabilities are whole multiples of it, exact as float32 up to 2**24 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an execution is going to be like."""

    turns: int
    tool_s: float
    words: int
    score: float
    said: tuple[str, ...]
    """What its evaluator says, attempt by attempt; the last again and again."""
    crashes_after: int | None = None
    hangs_after: int | None = None
    has_no_sandbox: bool = False

    @property
    def is_sound(self):
        """Nothing of its own goes wrong with it."""
        return self.crashes_after is None and self.hangs_after is None and not self.has_no_sandbox


class Watch:
    """The truth about one run."""

    def __init__(self, rng, trace, *, batch_executions, trouble):
        self._rng = rng
        self._trace = trace
        self._batch_executions = batch_executions
        self._trouble = trouble
        """How many of the executions, evaluators and orders go wrong by themselves, 0 to 1."""
        self._plans = {}
        self._tokens = {}
        self._agents = Counter()
        self._attempts = Counter()
        self._failed = Counter()
        self._facts = {}
        self.harmed = set()
        """Executions that a fault hit directly, so that they may end in any way."""
        self.weights = {0: FIRST}
        """By version, what an update made; never another."""
        self.gradients = {}
        """By version before the update, what was in it."""
        self.answers = {}
        self.is_full = lambda **how: False
        """Whether the disk takes no more logs and checkpoints now."""
        self.violations = []
        self.stop = lambda: None
        """Called at the first violation."""

    def wrong(self, invariant, what):
        """Noted, and the run is over."""
        self._trace(f"VIOLATION {invariant}: {what}")
        self.violations.append(f"{invariant}: {what}")
        self.stop()

    # Executions

    def plan_of(self, execution):
        found = self._plans.get(execution)
        if found is None:
            found = self._plans[execution] = self._planned(execution)
        return found

    def _planned(self, execution):
        rng, bad = self._rng, self._rng.random() < self._trouble
        score = rng.choice((0.0, 0.25, 0.5, 1.0))
        turns = rng.randint(1, 3)
        kind = rng.choice(("crash", "hang", "sandbox", "said", "said")) if bad else None
        right = str(score)
        said = (right,)
        if kind == "said":
            wrong = rng.choice(("nan", "7", "x", "", "-1", "hang", "crash", "silent"))
            said = (wrong,) * 3 if rng.random() < 0.5 else (wrong, right)
        return Plan(
            turns=turns,
            tool_s=rng.uniform(0.05, 2.0),
            words=rng.randint(1, 12),
            score=score,
            said=said,
            crashes_after=rng.randrange(turns) if kind == "crash" else None,
            hangs_after=rng.randrange(turns) if kind == "hang" else None,
            has_no_sandbox=kind == "sandbox",
        )

    def has_bad_sandbox(self, execution):
        return self.plan_of(execution).has_no_sandbox

    def agent_started(self, execution):
        self._agents[execution] += 1
        if self._agents[execution] > 1:
            self.wrong("SPEC 10", f"{execution} was launched twice")

    def relaunched(self, before, execution):
        """A member of a group begins anew under another name."""
        if self._agents[before] and before not in self.harmed:
            self.wrong("SPEC 10", f"{before} could go on, and {execution} is launched in its place")

    def judged(self, execution):
        said = self.plan_of(execution).said
        at = self._attempts[execution]
        self._attempts[execution] += 1
        return said[min(at, len(said) - 1)]

    def supervised(self, execution, fact):
        """A supervisor wrote a fact of its execution."""
        known = self._facts.setdefault(execution, [])
        if isinstance(fact, Launched | Terminated | Closed) and any(
            type(one) is type(fact) for one in known
        ):
            self.wrong("I1", f"{execution} has two facts {type(fact).__name__}")
        known.append(fact)

    def answered(self, execution, messages, text):
        """An agent has a reply; it is the one that the policy says there."""
        turn = sum(one["role"] == "assistant" for one in messages)
        wanted = f"{execution} {turn} " + "x" * self.plan_of(execution).words
        if text != wanted:
            self.wrong("I6", f"{execution} turn {turn}: {text!r} is not {wanted!r}")
        self.answers[execution] = self.answers.get(execution, 0) + 1

    def refused(self, execution, status, found):
        """An agent was told an error."""
        is_over = any(isinstance(one, Terminated) for one in self._facts.get(execution, ()))
        if not (is_over or execution in self.harmed or self.is_full(lately_s=2.0)):
            self.wrong("I6", f"{execution} got {status}: {found}")

    def rewarded(self, execution, outcome, score):
        """The run gives an execution this reward (I7)."""
        plan = self.plan_of(execution)
        if outcome is Outcome.VALID:
            made = self._attempts[execution]
            if not made or plan.said[min(made, len(plan.said)) - 1] != str(plan.score):
                self.wrong("I7", f"{execution} is valid, and its evaluator never said so")
            if score != plan.score:
                self.wrong("I7", f"{execution} got {score}, and {plan.score} was said")
        elif score is not None:
            self.wrong("I7", f"{execution} is {outcome.value} with the reward {score}")
        if outcome is Outcome.PLACEHOLDER and self.answers.get(execution):
            self.wrong("I7", f"{execution} is a placeholder, and its agent got replies")
        is_well = plan.is_sound and str(plan.score) in plan.said and execution not in self.harmed
        if is_well and outcome in (Outcome.EXCLUDED, Outcome.PLACEHOLDER):
            self.wrong("SPEC 10", f"{execution} could go on, and came to {outcome.value}")

    # Tokens

    def reply(self, execution, prompt):
        """What follows this prompt; one that ends with a part of the reply gets the rest."""
        turn = _turn(prompt)
        whole = reply_of(execution, turn, self.plan_of(execution).words)
        for known in range(len(whole) - 1, 0, -1):
            if prompt[-known:] == whole[:known]:
                return whole[known:]
        return whole

    def emitted(self, cell, execution, token):
        """The log-probability of a token that the cell's engine samples now."""
        version = cell.engine_version
        if self.weights.get(version) != cell.engine_weights:
            self.wrong("I9", f"cell {cell.number} serves {cell.engine_weights} as {version}")
        number = len(self._tokens) + 1
        self._tokens[number] = execution, token, version
        return -number * UNIT

    # Cells

    def may_fail(self, cell, what):
        """An order that a cell cannot carry out this time."""
        failed = self._failed[cell.number, what]
        if self._rng.random() >= self._trouble * 0.1 or failed == MOST_FAILED:
            self._failed[cell.number, what] = 0
            return
        self._failed[cell.number, what] += 1
        self._trace(f"cell {cell.number} cannot {what}")
        raise CellError(f"{what}: no memory")

    def may_write(self, cell):
        """A checkpoint that the disk has no room for this time."""
        if self.is_full() or self._rng.random() < self._trouble * 0.1:
            self._trace(f"cell {cell.number} cannot write")
            raise CheckpointError("no space left on device")

    def flips(self, cell):
        """Whether the bytes that a cell loads are others than were written."""
        return self._rng.random() < self._trouble * 0.05

    def trained(self, cell, claim, num_executions):
        """What a claim puts into a sum: a mark for each target."""
        if num_executions != self._batch_executions:
            self.wrong("I2", f"a claim is divided by {num_executions}")
        marks = []
        for pack in claim.packs:
            for label, logprob, share in zip(
                pack.labels.tolist(), pack.behaviour.tolist(), pack.shares.tolist(), strict=True
            ):
                marks.append(self._target(claim.shares[share], label, logprob))
        found = Counter(mark.split("/")[0] for mark in marks)
        for share in claim.shares:
            if found[share.execution] != share.num_targets:
                self.wrong("I5", f"{share.execution} has {found[share.execution]} targets")
        return marks

    def _target(self, share, label, logprob):
        number = round(-logprob / UNIT)
        execution, token, _ = self._tokens.get(number, (None, None, None))
        if (execution, token) != (share.execution, label) or -number * UNIT != logprob:
            self.wrong("I5", f"{share.execution} trains on {label} at {logprob}, never emitted")
        return f"{share.execution}/{number}/{share.advantage!r}"

    def stepped(self, cell, version, gradient):
        """An update is made (I8)."""
        twice = [mark for mark, times in Counter(gradient).items() if times > 1]
        if twice:
            self.wrong("I8", f"step {version} counts {twice[0]} twice")
        made = sorted(gradient)
        before = self.gradients.setdefault(version, made)
        if before != made:
            odd = sorted(set(before) ^ set(made))[:3]
            self.wrong("I8", f"step {version} is made again with another sum: {odd}")
        if cell.weights != (after := next_weights(self.weights[version], gradient)):
            self.wrong("I8", f"step {version} was not taken from version {version}")
        known = self.weights.setdefault(version + 1, after)
        if known != after:
            self.wrong("I8", f"version {version + 1} has two kinds of weights")

    def has_version(self, cell, version, since_s):
        """Somebody says that the engine has it, of a cell that was there at that time."""
        is_there = not cell.node.is_dead and cell.born_s <= since_s
        if is_there and cell.engine_version < version:
            self.wrong("I9", f"cell {cell.number} has {cell.engine_version}, and {version} is said")

    def saved(self, cell, version, weights):
        if self.weights.get(version) != weights:
            self.wrong("I9", f"a checkpoint of {version} holds {weights}")

    def batch(self, step, executions):
        """What the step must have trained: every execution with an advantage, and no other."""
        trained = {mark.split("/")[0] for mark in self.gradients.get(step, ())}
        missing = {one for one in executions if self.answers.get(one)} - trained
        if missing:
            self.wrong("I8", f"step {step} lacks {sorted(missing)}")
        if odd := trained - set(executions):
            self.wrong("I2", f"step {step} trained {sorted(odd)}, which are not of its batch")


def _turn(prompt):
    """How many replies the prompt holds before the one that is asked for."""
    opener = [256, *b"assistant\n"]
    width = len(opener)
    found = sum(prompt[at : at + width] == opener for at in range(len(prompt) - width + 1))
    return found - 1
