"""A run with the paper's longest execution in it: 636 calls, written as a proxy writes them."""

from pathlib import Path

from tests.observability.conftest import Story
from tests.observability.support.journals import SMALL, journal, simulated, told
from tokenizers import Tokenizer

from gyre.model.registry import known_models

NAME = "g0-0"
"""An execution of the run's first group."""
NUM_CALLS = 636
WORDS = (
    "The build stops in the module of frames because a header is read before it is whole.",
    "Look at the catalog first, then at the tests that name it, and say what is missing.",
    "def read(path):\n    with open(path) as file:\n        return file.read().splitlines()\n",
    "3 passed, 1 failed: expected the row of the last flight, found none.",
)


def write(folder, *, tool_tokens=200):
    """A folder with the journal of a whole run, and the one call log."""
    folder.mkdir(parents=True, exist_ok=True)
    journal(folder / "journal", SMALL, told(simulated(SMALL)[1]))
    history = _Story(tool_tokens)
    history.grow()
    history.history.seal()
    history.history.write(folder)
    return folder


class _Story:
    """As test_selection.py has the shape: two prompts, ten leaves, one sub-agent twice."""

    def __init__(self, tool_tokens):
        known = known_models()["tiny"]
        self.history = Story(execution=NAME, model="tiny")
        self._encode = Tokenizer.from_file(str(Path(known.folder) / "tokenizer.json")).encode
        self._tool_tokens = tool_tokens
        self._number = 0

    def ids(self, many, offset=0):
        """So many tokens of readable text."""
        text = " ".join(WORDS[(at + offset) % len(WORDS)] for at in range(1 + many // 8))
        return self._encode(text).ids[:many]

    def call(self, under, inputs, **more):
        self._number += 1
        return self.history.call(
            self._number,
            under,
            inputs,
            self.ids(24, self._number),
            text=WORDS[self._number % len(WORDS)],
            version=self._number * 4 // NUM_CALLS,
            **more,
        )

    def chain(self, under, num, first, **more):
        """Segments of the replies of a chain of calls."""
        fork = more.pop("fork", None)
        found = [self.call(under, first, fork=fork, **more)]
        for _ in range(num - 1):
            result = {"tool": self.ids(self._tool_tokens, self._number)}
            found.append(self.call(found[-1], result, **more))
        return found

    def grow(self):
        asked = {"user": self.ids(40)}
        before = self.chain(0, 85, {"system": self.ids(300), **asked})
        self.call(before[-2], {"user": self.ids(20)}, role="main-summary", fork="branch")
        self.chain(1, 100, {"user": self.ids(80)}, fork="new-conversation")
        sub = {"role": "sub-agent"}
        root = self.history.segments + 1
        prompt = {"system": self.ids(150), **asked}
        first = self.chain(0, 97, prompt, agent="catalog", fork="new-root", **sub)
        summary = {"role": "sub-agent-summary", "agent": "catalog", "fork": "branch"}
        self.call(first[-2], {"user": self.ids(20)}, **summary)
        lengths = {"catalog": 80, "frames": 75, "flight": 71, "fdw": 26, "fdw again": 100}
        for agent, num in lengths.items():
            self.chain(root, num, asked, agent=agent, fork="new-conversation", **sub)
