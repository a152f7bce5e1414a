"""What is written of a call and told of an execution, in bytes; nothing here depends on time."""

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from benchmarks.micro.cases import PACKAGES
from benchmarks.micro.growing import Growing, qwen3
from benchmarks.peers import results
from benchmarks.peers.contestants import OWN
from tests.security.inside import BEARER, inside

from gyre.storage import call_log
from gyre.types.call_records import CallRecord
from gyre.types.protocols import Renderer

CALLS = 200
OUTPUT_CHARS = 1_200
EXECUTIONS = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    samples = {"call log": [_logged(qwen3())], "status": [asyncio.run(_told())]}
    print(samples)
    if args.dry:
        return
    path = results.write(
        "scale-written",
        samples=samples,
        settings={"output_chars": OUTPUT_CHARS},
        packages=results.versions({"gyre": (OWN, PACKAGES)}),
        load_average=(load_before, os.getloadavg()[0]),
    )
    print(path)


def _logged(renderer: Renderer) -> dict[str, float]:
    """Of one execution whose calls each add a reply and the output of a tool."""
    log_bytes = 0

    def heard(record: CallRecord) -> None:
        nonlocal log_bytes
        log_bytes += len(call_log.frame(record))

    growing = Growing(renderer, keeps_records=False, heard=heard)
    for _ in range(CALLS):
        growing.call(OUTPUT_CHARS)
    tokens = growing.session.tree.num_tokens
    return {
        "executions": 1,
        "tokens_per_call": tokens / CALLS,
        "bytes_per_call": log_bytes / CALLS,
        "bytes_per_token": log_bytes / tokens,
    }


async def _told() -> dict[str, float]:
    """Of each execution, by a proxy that is asked how it stands."""
    with tempfile.TemporaryDirectory() as folder:
        async with inside(Path(folder)) as listeners:
            before = await listeners.proxy.send("GET", "/gyre/status", headers=[BEARER])
            for number in range(EXECUTIONS):
                path = f"/gyre/executions/g{number:05d}-00"
                await listeners.proxy.send("PUT", path, headers=[BEARER])
            after = await listeners.proxy.send("GET", "/gyre/status", headers=[BEARER])
    grown = len(after.body) - len(before.body)
    return {"executions": EXECUTIONS, "bytes_per_execution": grown / EXECUTIONS}


if __name__ == "__main__":
    main()
