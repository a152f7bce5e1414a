"""Processes that compute on one GPU at the same time: NVIDIA's MPS, for as long as it is needed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PROGRAM = "nvidia-cuda-mps-control"
START_S = 20.0


@contextmanager
def together() -> Iterator[bool]:
    """Whether processes started meanwhile share the GPU by MPS; False where it does not start."""
    if shutil.which(PROGRAM) is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(places)
        try:
            yield _started()
        finally:
            # Who asks may be a client itself, and is not waited for longer than that second; one
            # that does not answer ends with the machine, and must cost no result.
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([PROGRAM], input=b"quit -t 1\n", check=False, timeout=START_S)
            for name in places:
                os.environ.pop(name, None)


def _started() -> bool:
    try:
        return subprocess.run([PROGRAM, "-d"], check=False, timeout=START_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False
