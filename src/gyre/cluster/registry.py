"""The cluster that a run file asks for, loaded only then."""

import importlib
from pathlib import Path

from gyre.cluster.process import LocalCluster
from gyre.config.run_config import ClusterConfig
from gyre.types.errors import ConfigError
from gyre.types.protocols import Cluster

CLIENT = "ray://"
"""How addresses begin that only Ray's clients outside of a cluster use."""


async def open_cluster(
    section: ClusterConfig, *, run: str, folder: Path, key_file: Path
) -> Cluster:
    """ConfigError where there is none, or its library is not installed.

    `folder` is the run's, which every machine of the cluster must see. A cell that starts ranks on
    another node shows what `key_file` holds.
    """
    if section.kind == "local":
        return LocalCluster()
    if section.address.startswith(CLIENT):
        raise ConfigError(
            f"cluster.address: {section.address}: expected auto, or HOST:PORT of the cluster; "
            "a run is on one of its nodes, and no client of it"
        )
    try:
        module = importlib.import_module("gyre.cluster.ray")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        message = "cluster.kind = \"ray\" needs Ray: pip install 'gyre-rl[ray]'"
        raise ConfigError(message) from error
    cluster: Cluster = await module.opened(section, run=run, folder=folder, key_file=key_file)
    return cluster
