"""A process that writes a checkpoint and is killed at its n-th operation on files, n from 0 on.

    python -m tests.cell.support.killed_saver FOLDER

Each n has a folder of its own with version 1 in it, a process of its own that writes version 2, and
a line: n, and "killed" or "written". It ends when a process has come through.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from tests.model.support.folders import small

from gyre.cell.checkpoint import CheckpointWriter, SingleRankCopies
from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.trainer.offload import Snapshot
from gyre.trainer.trainer import Trainer

WATCHED = {"open", "os.listdir", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.scandir"}


def die_after(number):
    """The process kills itself at that operation, before it is done."""
    left = number

    def heard(event, arguments):
        nonlocal left
        if event in WATCHED:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(heard)


def main(folder):
    trainer = Trainer(
        small(),
        section=TrainerConfig(),
        objective=LossConfig(),
        optimizer=OptimizerConfig(),
    )
    saving = CheckpointWriter(SingleRankCopies(Snapshot(trainer)), trainer.network)
    trainer.version = 1
    saving.checkpoint(folder / "first" / "v000001", 1)
    number, was_killed = 0, True
    while was_killed:
        shutil.copytree(folder / "first", folder / str(number))
        child = os.fork()
        if child == 0:
            trainer.version = 2
            die_after(number)
            saving.checkpoint(folder / str(number) / "v000002", 2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(number, "killed" if was_killed else "written", flush=True)
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
