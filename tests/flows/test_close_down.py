"""Every kind of process closes what it opened before it ends: descriptors and threads."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict

from tests.cell.support.live_cells import Batch, Started
from tests.controller.support.supervised import order
from tests.flows.live.running import SCHEDULE, tasks_of, write_run
from tests.flows.test_rollout import AGENT, EMULATED, work
from tests.flows.test_serve import write_chat_model
from tests.waiting import PATIENCE_S

from gyre.rollout.main import Secrets
from gyre.rollout.spec import ORDER_FILE, write_order
from gyre.storage.files import write_plan
from gyre.testing.emulated_cell import tables

HALF = "echo 1 > work; "


class Closing:
    """A process under watch; it is told to end by the test, or ends by itself."""

    def __init__(self, folder, module, *arguments):
        self._report, self._errors = folder / "left", folder / "errors"
        command = [sys.executable, "-m", "tests.flows.closing", str(self._report), module]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def hear(self, begins):
        """Returns once it prints a line that begins so."""
        for line in self.process.stdout:
            if line.startswith(begins):
                return
        raise AssertionError(self._errors.read_text())

    def end(self, says=b""):
        """Its status, and what it left open; nothing more comes over its standard input."""
        self.process.communicate(says, timeout=PATIENCE_S)
        assert self._report.exists(), self._errors.read_text()
        return self.process.returncode, self._report.read_text()


@contextmanager
def closing(folder, module, *arguments):
    folder.mkdir(exist_ok=True)
    one = Closing(folder, module, *arguments)
    with one.process:
        try:
            yield one
        finally:
            one.process.kill()


def test_train(tmp_path):
    """The controller, with its cells, its proxy, its supervisors and their nurseries."""
    tasks = tasks_of(tmp_path, seed=1, mean_s=0.2)
    shape = SCHEDULE | {"steps": 2}
    path = write_run(tmp_path / "run.toml", tables(tmp_path / "run", tasks, {"schedule": shape}))
    with closing(tmp_path, "gyre.cli.main", "train", path) as one:
        assert (0, "") == one.end()


def test_rollout(tmp_path):
    """It has a proxy, supervisors and an engine of its own."""
    given = [work(tmp_path, tasks=1), "--model", "tiny", "--run", tmp_path / "run", *EMULATED]
    with closing(tmp_path, "gyre.cli.main", "rollout", *given, "--", *AGENT) as one:
        assert (0, "") == one.end()


def test_proxy(stage):
    given = ["--model", stage.model, "--run", stage.folder / "run", "--port", "0"]
    given += ["--engine", stage.engine().address, "--family", "qwen3"]
    with closing(stage.folder, "gyre.cli.main", "proxy", *given) as one:
        one.hear(b"ready")
        one.process.send_signal(signal.SIGTERM)
        assert (0, "") == one.end()


def test_inference_server(tmp_path):
    model = write_chat_model(tmp_path / "model", seed=1)
    with closing(tmp_path, "gyre.cli.main", "serve", model, "--port", "0") as one:
        one.hear(b"ready")
        one.process.send_signal(signal.SIGTERM)
        assert (0, "") == one.end()


def test_cell(tmp_path):
    plan = Started(tmp_path, Batch(tmp_path / "model").model).plan(0)
    path = write_plan(tmp_path / "plan.json", plan)
    with closing(tmp_path, "gyre.cell.main", path) as one:
        one.hear(b"ready")
        one.process.send_signal(signal.SIGTERM)
        assert (0, "") == one.end()


def test_rank(tmp_path):
    plan = Started(tmp_path, Batch(tmp_path / "model").model).plan(0)
    path = write_plan(tmp_path / "plan.json", plan)
    with closing(tmp_path, "gyre.cell.ranks.main", path, "0", tmp_path / "store") as one:
        one.hear(b'{"number":0')
        assert (0, "") == one.end()


def test_supervisor(tmp_path):
    folder = tmp_path / "execution"
    folder.mkdir()
    write_order(folder, order(HALF))
    with closing(tmp_path, "gyre.rollout.main", folder / ORDER_FILE) as one:
        said = json.dumps(asdict(Secrets(key="k"))).encode()
        assert (0, "") == one.end(said)


def test_dashboard(tmp_path):
    """It ends with whoever started it."""
    with closing(tmp_path, "gyre.observability.dashboard.server", tmp_path / "run") as one:
        one.hear(b"http://")
        assert (0, "") == one.end()


def test_fork_server(tmp_path):
    with closing(tmp_path, "gyre.cluster.fork_server", "tests.cluster.support.forked") as one:
        assert (0, "") == one.end()
