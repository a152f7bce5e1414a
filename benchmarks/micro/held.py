"""Memory that one execution holds while it grows by a thousand calls, counted by the allocator."""

import argparse
import gc
import os
import tracemalloc

from benchmarks.micro.cases import PACKAGES
from benchmarks.micro.growing import Growing, qwen3
from benchmarks.peers import results
from benchmarks.peers.contestants import OWN

from gyre.types.protocols import Renderer

CALLS = 1_000
POINTS = 20
OUTPUT_CHARS = 1_200


def one_run(renderer: Renderer) -> dict[str, object]:
    """Bytes held and unique tokens stored, twenty times on the way.

    Resident memory says little here: what reading a tokenizer leaves free is enough for many
    executions.
    """
    growing = Growing(renderer, keeps_records=False)
    growing.call(OUTPUT_CHARS)
    tracemalloc.start()
    points = []
    for number in range(CALLS + 1):
        if number % (CALLS // POINTS) == 0:
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            tokens = growing.session.tree.num_tokens
            # The client's own copy of the conversation lives in this process too.
            held -= growing.conversation.num_bytes
            points.append({"calls": number, "held_bytes": held, "tokens": tokens})
        growing.call(OUTPUT_CHARS)
    tracemalloc.stop()
    return {"calls": CALLS, "points": points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    renderer = qwen3()
    samples = {"gyre": [one_run(renderer) for _ in range(args.runs)]}
    if args.dry:
        print(samples)
        return
    path = results.write(
        "held",
        samples=samples,
        settings={"runs": args.runs, "output_chars": OUTPUT_CHARS},
        packages=results.versions({"gyre": (OWN, PACKAGES)}),
        load_average=(load_before, os.getloadavg()[0]),
    )
    print(path)


if __name__ == "__main__":
    main()
