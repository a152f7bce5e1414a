"""DeepSWE's folders, which are Harbor's: fail-to-pass counts if everything else still works.

Its own `partial` pays for tests that pass untouched, and its collector sees commits alone; here
everything that was left is committed in the copy that is judged.
"""

import shlex
from dataclasses import replace
from pathlib import Path

from gyre.tasks import safe_paths
from gyre.tasks.harbor import EXPECTED, FOLDERS_DEEP, TASK_FILE, read_task
from gyre.tasks.task_list import ListedTasks
from gyre.types.errors import TaskError
from gyre.types.tasks import Task

COLLECT = """set -e
git config --global --add safe.directory {workdir}
cd {workdir}
git -c core.hooksPath=/dev/null add -A
git -c core.hooksPath=/dev/null -c user.name=gyre -c user.email=gyre@localhost \\
  commit --quiet --no-verify --allow-empty --message state
mkdir -p /logs/artifacts
git diff --binary {base} HEAD > /logs/artifacts/model.patch
git -c core.hooksPath=/dev/null checkout --quiet --force {base}
git clean --quiet --force -d
exec bash "$GYRE_EVALUATION/test.sh"
"""
"""Puts the base back in place, because the task's grader applies the patch to it."""


class DeepSweTasks(ListedTasks):
    """The tasks of a checkout, in the order of their folders; read at once."""

    def __init__(self, folder: Path) -> None:
        folders = safe_paths.folders_with(folder, TASK_FILE, depth=FOLDERS_DEEP)
        super().__init__(map(_read, folders), str(folder), expected=EXPECTED)


def _read(folder: Path) -> Task:
    task = read_task(folder)
    base = task.metadata.get("base_commit_hash")
    if base is None or not base.isalnum():
        raise TaskError(f"{folder / TASK_FILE}: metadata.base_commit_hash: expected a commit")
    workdir = task.needs.workdir
    assert workdir is not None
    script = COLLECT.format(workdir=shlex.quote(workdir), base=base)
    return replace(
        task,
        evaluation=replace(
            task.evaluation,
            argv=("bash", "-c", script),
            reward_key="f2p",
            gate="p2p",
            sentinels=(-1.0,),
        ),
    )
