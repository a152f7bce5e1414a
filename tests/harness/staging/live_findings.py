"""What a live run left behind: its journal, its trees, and what its engines noted."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from staging.findings import CODER, Shape, shape_of
from staging.live import LEDGER, Tour, Toured
from staging.live_script import live

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import JournalContents, path_of, read
from gyre.rollout import facts
from gyre.scheduler import replay
from gyre.scheduler.messages import CellTraining, EnterTraining, GroupAssigned, StepTaken
from gyre.storage import call_log
from gyre.testing.script import ScriptedModel, logprobs
from gyre.trajectory.tree import CallNode, Tree, grow
from gyre.types.ids import CORE
from gyre.types.outcomes import Fact
from gyre.types.run_events import ClaimTrained, TransitionTimed

COLUMNS = ("midway", "hand_overs", "carried_bytes", "carried_tokens", "again_tokens")
"""Of what moved with each transition."""
RESULT = re.compile(r"<tool_response>.*?</tool_response>", re.DOTALL)
RESULTS = re.compile(rf"{RESULT.pattern}(?:\s*{RESULT.pattern})+", re.DOTALL)
"""Several in one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A satellite that came into a batch which others worked on already."""

    cell: int
    step: int
    num_claims: int
    """Claims of that batch that it did."""


@dataclass(frozen=True, kw_only=True)
class LiveFindings:
    """A live run, read back."""

    tour: Tour
    toured: Toured
    folder: Path
    """Where everything lies now."""
    played_in: Path
    """Where it lay while the run went on, which prompts tell of."""

    @property
    def _run(self) -> Path:
        return self.folder / "run"

    @cached_property
    def journal(self) -> JournalContents:
        return read(path_of(self._run), kinds=JOURNAL_EVENTS)

    def facts(self, *kinds: type) -> list[Any]:
        return [fact for _, fact in self.journal.facts(kinds)]

    @cached_property
    def trees(self) -> dict[str, Tree]:
        """By execution."""
        return {path.stem: grow(call_log.read(path).records) for path in call_log.logs(self._run)}

    @cached_property
    def shapes(self) -> dict[str, tuple[Shape, ...]]:
        """Committed trees with volatile text taken out, by execution."""
        return {name: _settled(shape_of(tree, self.played_in)) for name, tree in self.trees.items()}

    @cached_property
    def lives(self) -> dict[str, list[Fact]]:
        """What the supervisors said, by execution."""
        folders = sorted((self._run / "attempts").iterdir())
        return {one.name: [entry.fact for entry in facts.read(one)] for one in folders}

    def said(self, execution: str) -> Any:
        """What the program printed when it ended, after its complaints."""
        output = (self._run / "attempts" / execution / "output.txt").read_text()
        return json.loads(output.splitlines()[-1])

    def counted(self, metric: str) -> Counter[str]:
        """One of the proxy's counts as it stood last, by its labels."""
        found: Counter[str] = Counter()
        pattern = re.compile(rf"^{metric}({{.*}})? (\S+)$", re.MULTILINE)
        for labels, number in pattern.findall(self.toured.metrics):
            found[labels] += int(float(number))
        return found

    def total(self, metric: str) -> int:
        return self.counted(metric).total()

    @cached_property
    def carried_on(self) -> list[tuple[Tree, CallNode]]:
        """Calls whose tokens come from more than one engine."""
        return [
            (tree, node)
            for tree in self.trees.values()
            for node in tree.calls.values()
            if len({span.engine for span in node.spans}) > 1
        ]

    @property
    def num_midway(self) -> int:
        """How often a call left an engine that had sampled for it, by the call logs alone."""
        return sum(
            before.engine != after.engine
            for _, node in self.carried_on
            for before, after in pairwise(node.spans)
        )

    @property
    def wrong_tokens(self) -> list[str]:
        """Calls of several engines that differ from what one engine would have said."""
        model = ScriptedModel(live(), CODER)
        found = []
        for tree, node in self.carried_on:
            prompt = tree.prompt_ids(node.id).tobytes()
            plan = model.plan(prompt, max_tokens=8192)
            ids, values = tree.output_ids(node.id), tree.output_logprobs(node.id)
            if plan.ids != ids.tolist() or logprobs(prompt, plan.ids) != values.tolist():
                found.append(str(node.id))
        return found

    @property
    def claims(self) -> Counter[int]:
        """Trained, by cell."""
        return Counter(one.cell for one in self.facts(ClaimTrained))

    @cached_property
    def orders(self) -> list[Any]:
        """What the scheduler ordered, from the journal through a fresh one."""
        assert self.journal.header is not None
        shape = replay.shape_of(self.journal.header.shape)
        ran = replay.replay(shape, self.journal.facts(replay.EVENTS))
        return [command for commands in ran.orders for command in commands]

    @property
    def num_moved_executions(self) -> int:
        return sum(len(one.moves) for one in self.orders if isinstance(one, EnterTraining))

    @property
    def joins(self) -> list[Join]:
        """Satellites that came after a group of the batch was assigned, before its step."""
        done = Counter((one.step, one.cell) for one in self.facts(ClaimTrained))
        found: list[Join] = []
        step: int | None = None
        for fact in self.facts(GroupAssigned, CellTraining, StepTaken):
            match fact:
                case GroupAssigned():
                    step = fact.step
                case StepTaken():
                    step = None
                case CellTraining(cell=cell) if step is not None and cell != CORE:
                    found.append(Join(cell=cell, step=step, num_claims=done[step, cell]))
        return found

    @property
    def prefilled_again(self) -> int:
        """Tokens that engines computed for calls which others had begun, by the engines' notes."""
        asked: set[str] = set()
        tokens = 0
        for line in (self.folder / LEDGER).read_text().splitlines():
            note = json.loads(line)
            # What an ask computes for a second time follows from new weights, not from a move.
            if note["event"] != "prefill" or note["ask"] in asked:
                continue
            asked.add(note["ask"])
            attempt = note["ask"].split("-")[2]
            is_continued = int(attempt[:6], 16) > 1
            tokens += note["computed"] if is_continued else 0
        return tokens

    def table(self) -> str:
        """Every transition into training with what moved, and who trained how much."""
        lines = [f"{self.tour.name}: {self.toured.seconds:.0f} s", _row("at", "cell", *COLUMNS)]
        for now, fact in self.journal.facts((TransitionTimed,)):
            if fact.into_training:
                moved = [f"{fact.moved.get(name, 0):,}" for name in COLUMNS]
                lines.append(_row(f"{now:.1f}", str(fact.cell), *moved))
        lines += [
            f"executions moved {self.num_moved_executions}, calls midway {self.num_midway}, "
            f"KV bytes moved {self.total('gyre_carried_bytes_total'):,}, "
            f"tokens prefilled again {self.prefilled_again:,}",
            "claims by cell "
            + ", ".join(
                f"{cell}: {number} ({number / self.claims.total():.0%})"
                for cell, number in sorted(self.claims.items())
            ),
        ]
        return "\n".join(lines)


def _settled(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Results of sub-agents that ran at once come in the order of their ends; here, in one."""
    found = [(role, RESULTS.sub(_in_order, text), _settled(below)) for role, text, below in shapes]
    return tuple(sorted(found))


def _in_order(results: re.Match[str]) -> str:
    return "".join(sorted(RESULT.findall(results[0])))


def _row(*cells: str) -> str:
    return "".join(f"{cell:>16}" for cell in cells)
