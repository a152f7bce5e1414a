"""The text of ids that were sent before, so that a longer prompt costs only what it adds."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import orjson

MOST_BYTES = 64 * 2**20
"""Memory for ids and their text, over all executions of an engine."""
FEWEST_IDS = 8192
"""Shorter prompts are written anew as quickly."""
MOST_AGENTS = 3
"""Prompts kept of one execution, whose agents talk in turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    ids: bytes
    text: bytes

    @property
    def nbytes(self) -> int:
        return len(self.ids) + len(self.text)


class PromptTextCache:
    """The last long prompts of each execution, the longest unused forgotten first."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._of: OrderedDict[str, list[_Asked]] = OrderedDict()
        self._nbytes = 0

    def text(self, execution: str, ids: bytes) -> bytes:
        """The int32 ids as JSON numbers with commas between."""
        if len(ids) < 4 * FEWEST_IDS:
            return _written(ids)
        known = self._of.pop(execution, [])
        text = None
        for one in known:
            if ids.startswith(one.ids):
                rest = _written(ids[len(one.ids) :])
                text = one.text + b"," + rest if rest else one.text
                self._nbytes -= one.nbytes
                known.remove(one)
                break
        new = _Asked(ids=ids, text=_written(ids) if text is None else text)
        known.append(new)
        self._nbytes += new.nbytes
        if len(known) > MOST_AGENTS:
            self._nbytes -= known.pop(0).nbytes
        self._of[execution] = known
        while self._nbytes > self._most_bytes and self._of:
            _, forgotten = self._of.popitem(last=False)
            self._nbytes -= sum(one.nbytes for one in forgotten)
        return new.text


def _written(ids: bytes) -> bytes:
    # orjson reads the ids through numpy, because a Python int for each would cost the most.
    array = np.frombuffer(ids, dtype=np.dtype("<i4"))
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
