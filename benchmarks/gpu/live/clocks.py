"""How fast the GPU could compute during a run, by what its driver says from time to time."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, median

PROGRAM = "nvidia-smi"
ASKED = {
    "mhz": "clocks.sm",
    "celsius": "temperature.gpu",
    "watts": "power.draw",
    "busy": "utilization.gpu",
}
LOOK_S = 2.0
ANSWER_S = 10.0


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """What is found of the clock, its heat and its power when the block ends; empty without one.

    What is seen while the GPU does nothing, as when processes start, does not count: an idle clock
    says nothing of one that was held back.
    """
    found: dict[str, float] = {}
    if shutil.which(PROGRAM) is None:
        yield found
        return
    seen: list[dict[str, float]] = []
    over = threading.Event()
    thread = threading.Thread(target=_look, args=(seen, over), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        found |= _summed(seen)


def _look(seen: list[dict[str, float]], over: threading.Event) -> None:
    while True:
        if (one := _asked()) is not None:
            seen.append(one)
        if over.wait(LOOK_S):
            return


def _asked() -> dict[str, float] | None:
    """None where the driver does not answer in numbers: that must cost no run."""
    query = [PROGRAM, f"--query-gpu={','.join(ASKED.values())}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, check=True, capture_output=True, text=True, timeout=ANSWER_S)
        first = told.stdout.splitlines()[0]
        return dict(zip(ASKED, map(float, first.split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, LookupError, ValueError):
        return None


def _summed(seen: list[dict[str, float]]) -> dict[str, float]:
    seen = [one for one in seen if one["busy"] > 0]
    if not seen:
        return {}
    clocks = [one["mhz"] for one in seen]
    return {
        "gpu clock_mhz": median(clocks),
        "gpu least clock_mhz": min(clocks),
        "gpu most celsius": max(one["celsius"] for one in seen),
        "gpu mean watts": fmean(one["watts"] for one in seen),
    }
