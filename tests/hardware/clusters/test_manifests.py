"""The manifests for KubeRay are what docs/cluster.md says of them."""

import re
from pathlib import Path

import pytest
import yaml

from gyre.config.settings import setting_at

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PINNED = re.search(
    r"^ray==(\S+)", (ROOT / "tests/hardware/clusters/lock/ray.txt").read_text(), re.MULTILINE
)[1]
HEALTH = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


def parts(name):
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / name).read_text())}


def spec_of(name):
    found = parts(name)
    return (
        found["RayJob"]["spec"]["rayClusterSpec"]
        if "RayJob" in found
        else found["RayCluster"]["spec"]
    )


@pytest.mark.parametrize("name", ["rayjob.yaml", "raycluster.yaml"])
def test_every_node_has_the_token_and_the_shared_folder(name):
    spec = spec_of(name)
    pods = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]

    assert PINNED == spec["rayVersion"]
    assert {"mode": "token", "secretName": "ray-token"} == spec["authOptions"]
    assert "secret generic ray-token --from-file=auth_token" in (DEPLOY / "README.md").read_text()
    for pod in pods:
        (container,) = pod["template"]["spec"]["containers"]
        env = {one["name"]: one["value"] for one in container["env"]}
        mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["template"]["spec"]["volumes"]}
        assert "0" == env["RAY_worker_niceness"]
        # The operator sets them, and leaves alone what is set here.
        assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & set(env)
        assert "/shared" == mounts["shared"]
        assert "gyre-shared" == volumes["shared"]["persistentVolumeClaim"]["claimName"]
    assert ["ReadWriteMany"] == parts(name)["PersistentVolumeClaim"]["spec"]["accessModes"]


@pytest.mark.parametrize("name", ["rayjob.yaml", "raycluster.yaml"])
def test_the_head_notices_dead_nodes_soon_and_has_no_room_for_cells(name):
    head = spec_of(name)["headGroupSpec"]
    (container,) = head["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    page = (ROOT / "docs" / "cluster.md").read_text()

    assert HEALTH == {one: value for one, value in env.items() if one.startswith("RAY_health")}
    assert all(f"{one}={value}" in page for one, value in HEALTH.items())
    assert {"num-cpus": "0"} == head["rayStartParams"]


@pytest.mark.parametrize("name", ["rayjob.yaml", "raycluster.yaml"])
def test_nodes_with_accelerators_have_room_for_the_cell_that_the_job_asks_for(name):
    (group,) = spec_of(name)["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    asked = overrides()

    assert '{\\"cell\\": 1}' in group["rayStartParams"]["resources"]
    assert "cell" == asked["cluster.cell_resource"]
    assert float(asked["cluster.cell_gpus"]) == float(limits["nvidia.com/gpu"])
    assert float(asked["cluster.cell_cpus"]) <= float(limits["cpu"])


def test_the_job_goes_on_with_a_run_that_has_begun_and_asks_for_settings_that_there_are():
    spec = parts("rayjob.yaml")["RayJob"]["spec"]

    assert "gyre resume /shared/runs/first" in spec["entrypoint"]
    assert spec["backoffLimit"] > 0
    assert all(setting_at(path.split(".")) is not None for path in overrides())
    assert ("ray", "/shared/runs/first") == (
        overrides()["cluster.kind"],
        overrides()["run.folder"],
    )


def overrides():
    """What the job's command line gives beside the run file."""
    entry = parts("rayjob.yaml")["RayJob"]["spec"]["entrypoint"]
    return dict(re.findall(r"([a-z]+\.[a-z_]+)=([^ ;]+)", entry))
