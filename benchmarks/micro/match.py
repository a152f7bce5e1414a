"""Finding the place of a 900 KB request in the tree, beside merely parsing its JSON."""

import os
from functools import partial

import orjson
from benchmarks.micro.cases import Clock, Sample, arguments, finish
from benchmarks.micro.growing import Growing, qwen3

from gyre.harnesses.roles import classify

BODY_BYTES = 900_000
CALLS = 25
OUTPUT_CHARS = 1_200


def one_run(growing: Growing) -> dict[str, Sample]:
    """Each request is placed once, as it comes; then the conversation goes on."""
    clocks = {name: Clock() for name in ("parse", "split", "evidence", "position")}
    dialect = growing.dialect
    for _ in range(CALLS):
        body = growing.conversation.body
        clocks["parse"].time(partial(orjson.loads, body))
        wire = clocks["split"].time(partial(dialect.split, body))
        evidence = clocks["evidence"].time(partial(dialect.evidence, wire, {}))
        place = partial(growing.session.position, dialect, wire, classify(evidence))
        pending = clocks["position"].time(place)
        growing.close(wire, pending, OUTPUT_CHARS)
    return {name: clock.sample for name, clock in clocks.items()}


def main() -> None:
    args = arguments()
    load_before = os.getloadavg()[0]
    growing = Growing(qwen3())
    pending = growing.grow_to(BODY_BYTES, 4 * OUTPUT_CHARS)
    one_run(growing)
    runs = [one_run(growing) for _ in range(args.runs)]
    samples = {name: [run[name] for run in runs] for name in runs[0]}
    settings = {"body_bytes": BODY_BYTES, "prompt_tokens": pending.prompt_tokens}
    finish("match", samples, settings=settings, args=args, load_before=load_before)


if __name__ == "__main__":
    main()
