"""Adding calls to a tree: the first hundred, and the last hundred of a thousand."""

from collections.abc import Sequence
from itertools import cycle

from benchmarks.micro.cases import measure
from benchmarks.micro.growing import Growing, qwen3

from gyre.trajectory.tree import Tree, grow
from gyre.types.call_records import CallClosed, CallOpened

CALLS = 1_000
BLOCK = 100


def main() -> None:
    growing = Growing(qwen3())
    while len(growing.records) < CALLS:
        growing.call(400)
    records = growing.records
    early = cycle([grow(_logged(records[:0])) for _ in range(8)])
    late = cycle([grow(_logged(records[: CALLS - BLOCK])) for _ in range(8)])
    measure(
        "insert",
        {
            "first-hundred": lambda: _add(next(early), records[:BLOCK]),
            "last-hundred": lambda: _add(next(late), records[CALLS - BLOCK :]),
        },
        calls={"first-hundred": 1, "last-hundred": 1},
        settings={"calls": CALLS, "tokens": growing.session.tree.num_tokens, "block": BLOCK},
    )


def _logged(records: Sequence[CallClosed]) -> list[CallOpened | CallClosed]:
    return [fact for record in records for fact in (_opened(record), record)]


def _add(tree: Tree, records: Sequence[CallClosed]) -> None:
    for fact in _logged(records):
        tree.apply(fact)


def _opened(record: CallClosed) -> CallOpened:
    return CallOpened(call=record.call, at=0.0, dialect="chat", num_messages=1, prompt_tokens=1)


if __name__ == "__main__":
    main()
