"""Nodes of a real Ray cluster on this machine, each at an address of its own."""

import os
import secrets
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

OTHERS = ("127.0.0.2", "127.0.0.3")
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10000,
    "health_check_failure_threshold": 3,
}
"""A node that is gone is known to be so in seconds; one that only has a busy machine lives on."""
TOKEN = secrets.token_hex(16)
"""What the cluster asks of everybody; one for a process, because Ray reads it once."""
STORE_BYTES = 80_000_000
"""Next to nothing, because nothing of a run goes there."""


class Nodes:
    """A head without room for cells, and nodes that have some; ended with everything on them."""

    def __init__(self, cpus=2, *, takes_jobs=False):
        self._folder = Path(tempfile.mkdtemp(prefix="gr", dir="/tmp"))
        # As Ray wants it: short, and before it is imported.
        os.environ.update(
            RAY_TMPDIR=str(self._folder),
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN=TOKEN,
            RAY_worker_niceness="0",
        )
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": takes_jobs,
                "object_store_memory": STORE_BYTES,
                "_system_config": QUICK,
            },
        )
        self._nodes = {}
        for host in OTHERS:
            self.add(host)

    @property
    def address(self):
        return self._cluster.address

    @property
    def jobs(self):
        """Where jobs are submitted."""
        return f"http://{self._cluster.webui_url}"

    @property
    def head(self):
        """This machine's own address, because Ray takes the loopback's for it."""
        return self._cluster.head_node.node_ip_address

    def add(self, host):
        self._nodes[host] = self._cluster.add_node(
            num_cpus=self._cpus, node_ip_address=host, object_store_memory=STORE_BYTES
        )

    def freeze(self, host):
        """Nothing starts on the node any more, and for a while nobody knows that."""
        (raylet,) = self._nodes[host].all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGSTOP)

    def kill(self, host):
        """The node and every process on it, at once, as when a machine loses its power."""
        node = self._nodes.pop(host)
        (raylet,) = node.all_processes["raylet"]
        for pid in [raylet.process.pid, *below(raylet.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def revived(self):
        """Every node that was killed is there again."""
        for host in OTHERS:
            if host not in self._nodes:
                self.add(host)
        # Those that were killed must be known to be gone, or something would be started there.
        self._cluster.wait_for_nodes()

    def close(self):
        self._cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)


def below(pid):
    """Every descendant of a process."""
    children = {}
    for one in Path("/proc").iterdir():
        if one.name.isdecimal():
            with suppress(OSError):
                parent = int((one / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(one.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
