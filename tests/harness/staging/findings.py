"""What a played scene left behind, read back and checked against the engine's own notes."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from random import Random

import numpy as np
from staging.program import argv
from staging.scene import Outcome, Scene
from staging.scripts import Voice

from gyre.storage import call_log as calls
from gyre.testing.script import FastCoder, ScriptedModel, ScriptedReply, logprobs
from gyre.testing.tokenizer import tokenizer
from gyre.trajectory.selection import select_trajectories
from gyre.trajectory.tree import CallNode, Tree, grow
from gyre.types.call_records import CallRole
from gyre.types.ids import CallId

VERSIONS = {
    "claude-code-2.1.220": "2.1.220 (Claude Code)",
    "claude-code-2.1.325": "2.1.325 (Claude Code)",
    "codex": "codex-cli 0.166.0",
    "opencode": "1.18.33",
    "qwen-code": "0.24.4",
    "mini-swe-agent": "2.4.6",
}
"""What each program says when it is asked for its version."""

USER_AGENTS = {
    "claude-code-2.1.220": "claude-cli/2.1.220 ",
    "claude-code-2.1.325": "claude-cli/2.1.325 ",
    "codex": "codex_exec/0.166.0 ",
    "opencode": "opencode/1.18.33 ",
    "qwen-code": "QwenCode/0.24.4 ",
    "mini-swe-agent": "OpenAI/Python ",
}
"""How each program names itself to a server."""

VOLATILE = (
    (re.compile(r"\ba[0-9a-f]{16}\b"), "<agent>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    (re.compile(r"subagent_tokens: \d+"), "subagent_tokens: <number>"),
    (re.compile(r"duration_ms: \d+"), "duration_ms: <number>"),
)
"""Text that differs between two runs that did the same, besides the folder they ran in."""

CODER = FastCoder(tokenizer())

Shape = tuple[str, str, tuple["Shape", ...]]
"""A call's role, its text since the reply it builds on, and the calls that build on it."""


def num_tokens(*lines: ScriptedReply) -> int:
    """How many tokens the policy samples to say these lines."""
    return sum(len(CODER.encode(line.written())) for line in lines)


def all_lines(*voices: Voice) -> list[ScriptedReply]:
    return [line for one in voices for line in one.lines]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The tree of a scene, beside what the engine and the relay saw of it."""

    scene: Scene
    outcome: Outcome
    folder: Path
    version: str
    """What the program said of itself just before."""

    @cached_property
    def tree(self) -> Tree:
        return grow(calls.read(self.folder / "run" / "executions" / "play.calls").records)

    @cached_property
    def asks(self) -> list[bytes]:
        """Prompts the engine was sent, as int32."""
        lines = (self.folder / "asks.jsonl").read_text().splitlines()
        ids = (json.loads(line)["input_ids"] for line in lines)
        return [np.array(one, dtype=np.int32).tobytes() for one in ids]

    @cached_property
    def model(self) -> ScriptedModel:
        """The policy once more, to be asked again what it said."""
        script = getattr(import_module("staging.scripts"), self.scene.script)()
        return ScriptedModel(script, CODER)

    @property
    def committed(self) -> list[CallNode]:
        return [node for node in self.tree.calls.values() if node.committed is not None]

    @property
    def calls(self) -> Counter[CallRole]:
        return Counter(node.role for node in self.committed)

    @property
    def leaves(self) -> Counter[CallRole]:
        return Counter(node.role for node in self.tree.leaves())

    @property
    def forks(self) -> Counter[str]:
        return Counter(node.fork for node in self.committed if node.fork is not None)

    @property
    def agents(self) -> set[str]:
        """Sub-agents that the program named."""
        return {node.agent for node in self.committed if node.agent is not None}

    @property
    def num_requests(self) -> int:
        """Model calls on the wire, retries included."""
        return sum(seen.call is not None for seen in self.outcome.seen)

    @property
    def statuses(self) -> list[int | None]:
        """What the program got for each model call, in order of arrival."""
        return [seen.status for seen in self.outcome.seen if seen.call is not None]

    @property
    def num_targets(self) -> int:
        """Tokens that training would see, each once."""
        drawn = select_trajectories(self.tree, Random(0), max_trajectories=None)
        return sum(one.num_targets for one in drawn)

    def counted(self, metric: str, label: str) -> Counter[str]:
        """One of the proxy's own counts, by one of its labels."""
        pattern = re.compile(rf'^{metric}{{.*\b{label}="([^"]+)".*}} (\d+)$', re.MULTILINE)
        found: Counter[str] = Counter()
        for name, number in pattern.findall(self.outcome.metrics):
            found[name] += int(number)
        return found

    def path_texts(self, role: CallRole) -> list[str]:
        """Everything on the path of each leaf of this role."""
        found = [node for node in self.tree.leaves() if node.role == role]
        return [CODER.decode(self.tree.path_ids(node.segment).tolist()) for node in found]

    def shape(self) -> tuple[Shape, ...]:
        """The committed tree with volatile text taken out, in an order of its own."""
        return shape_of(self.tree, self.folder)


def shape_of(tree: Tree, folder: Path, call: CallId | None = None) -> tuple[Shape, ...]:
    """What is committed below a call, with volatile text taken out, in an order of its own."""
    nodes = [node for node in tree.children(call) if node.committed is not None]
    start = 0 if call is None else tree.segments[tree.calls[call].segment].end
    shapes: list[Shape] = []
    for node in nodes:
        text = CODER.decode(tree.path_ids(node.segment)[start:].tolist())
        # Claude Code names a project's folder after its path, with dashes.
        for path in (str(folder), re.sub(r"[^A-Za-z0-9]", "-", str(folder))):
            text = text.replace(path, "<folder>")
        for pattern, name in VOLATILE:
            text = pattern.sub(name, text)
        shapes.append((node.role, text, shape_of(tree, folder, node.id)))
    return tuple(sorted(shapes))


Stage = Callable[[Scene], Findings]
"""Plays a scene and reads back what it left."""


def difference(one: Findings, other: Findings) -> str | None:
    """Where two committed trees first differ, volatile text aside; None when they are the same."""
    return first_difference(one.shape(), other.shape())


def first_difference(one: tuple[Shape, ...], other: tuple[Shape, ...]) -> str | None:
    pairs = zip_longest(_lines(one), _lines(other))
    return next((f"{left!r}\n{right!r}" for left, right in pairs if left != right), None)


def _lines(shapes: tuple[Shape, ...], depth: int = 0) -> Iterator[str]:
    for role, text, below in shapes:
        yield f"{depth} {role}"
        yield from text.splitlines()
        yield from _lines(below, depth + 1)


def assert_real(found: Findings) -> None:
    """The program itself made every request, in a process that had no way out."""
    outcome, name = found.outcome, found.scene.program
    assert VERSIONS[name] == found.version
    program = Path(shutil.which(argv(name)[0]) or "").resolve()
    assert str(program) == outcome.exe
    assert {outcome.pid} == {seen.session for seen in outcome.seen}
    posts = [seen for seen in outcome.seen if seen.method == "POST"]
    assert posts
    assert all(seen.user_agent.startswith(USER_AGENTS[name]) for seen in posts)
    assert ["lo"] == outcome.interfaces
    assert [] == outcome.routes


def assert_exact(found: Findings, *, num_cut: int = 0) -> None:
    """Every stored prompt was sent, every stored output was said, every target counts once.

    Of calls that were cut the engine may have a note and the tree has none.
    """
    tree = found.tree
    prompts = Counter(tree.prompt_ids(call).tobytes() for call in tree.calls)
    asks = Counter(found.asks)
    assert Counter() == prompts - asks
    assert num_cut >= (asks - prompts).total()
    assert num_cut == len(tree.failed)
    for call, node in tree.calls.items():
        prompt = tree.prompt_ids(call).tobytes()
        plan = found.model.plan(prompt, max_tokens=8192)
        assert plan.ids == tree.output_ids(call).tolist()
        assert logprobs(prompt, plan.ids) == tree.output_logprobs(call).tolist()
        assert not node.ambiguous
        assert () == node.flags
    assert tree.is_complete
    if len(found.outcome.proxy_pids) == 1:
        # What was counted before a kill is gone with the process that counted it.
        recorded = Counter(node.role for node in tree.calls.values())
        assert recorded == found.counted("gyre_calls_total", "role")
        forked = Counter(node.fork for node in tree.calls.values() if node.fork is not None)
        assert forked == found.counted("gyre_forks_total", "reason")
    trained = [node for node in found.committed if node.role != "aux"]
    assert found.num_targets == sum(node.num_output for node in trained)


def assert_computed(found: Findings, role: CallRole, *, num_leaves: int) -> None:
    """So many leaves hold what only the program could have found out by running commands."""
    texts = found.path_texts(role)
    assert num_leaves == sum(found.scene.nonce in text for text in texts)
    spoken = [CODER.decode(found.tree.output_ids(call).tolist()) for call in found.tree.calls]
    assert not any(found.scene.nonce in text for text in spoken)
