"""A run that could not begin on this machine is refused with all that is in its way."""

import json
import sys

import pytest
from tests.config.support.tables import tables

from gyre.config.loader import loaded
from gyre.controller import preflight
from gyre.controller.preflight import num_devices, require_startable
from gyre.controller.run_dir import checked
from gyre.types.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    """Whatever this machine has, unless a test says otherwise."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def plan(tmp_path):
    """A run file that can begin, with values in place of some of its own."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "agent.py").touch()
    task = {"id": "one", "instruction": "x", "files": "workspace", "evaluation": {"argv": ["true"]}}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    whole = tables(
        tasks={"kind": "jsonl", "path": str(tmp_path / "tasks.jsonl")},
        harness={"argv": ["python3", "-I", "-S", "agent.py", "{task}"]},
    )
    return lambda *overrides: checked(loaded("run.toml", whole, overrides))


def refusals(run):
    with pytest.raises(ConfigError) as error:
        require_startable(run)
    first, *lines = str(error.value).splitlines()
    many = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    assert f"run.toml: {many}" == first
    return [line.strip() for line in lines]


@pytest.mark.parametrize("overrides", [(), ("cells.stages=2",), ("model.device=cpu:0",)])
def test_a_run_whose_parts_are_all_there_may_start(plan, overrides):
    require_startable(plan(*overrides))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "model.name=/nowhere",
            "model.name: /nowhere: expected tiny, smollm2 or a folder with a config.json and "
            "safetensors, found no folder",
        ),
        (
            "tasks.path=/nowhere",
            "tasks.path: /nowhere: expected a file or folder of tasks, found none",
        ),
        (
            'evaluation={slots=1, tasks={kind="folder", path="/nowhere"}}',
            "evaluation.tasks.path: /nowhere: expected a file or folder of tasks, found none",
        ),
        (
            'harness.argv=["python3", "absent.py"]',
            "harness.argv: expected absent.py among the files of task one, found none",
        ),
        (
            'harness.argv=["bin/agent"]',
            "harness.argv: expected bin/agent among the files of task one, found none",
        ),
        (
            'harness.argv=["sh", "/nowhere/agent.sh"]',
            "harness.argv: expected /nowhere/agent.sh among the files of task one, found none",
        ),
        (
            'harness.argv=["no-such-program"]',
            "harness.argv: expected a program, found no no-such-program",
        ),
        (
            'cells={count=1, capacity=1, engine="vllm", server={python="/nowhere/python"}}',
            "cells.server.python: expected an interpreter, found no file /nowhere/python",
        ),
        (
            "model.device=cuda:9",
            "model.device: expected cpu, found 'cuda:9' and no CUDA device; nearest: 'cpu'",
        ),
        ("model.device=gpu", "model.device: expected cpu, cuda or cuda:N, found 'gpu'"),
        (
            "proxy.context_tokens=5000",
            "proxy.context_tokens: expected at most the model's 4096 tokens, found 5000; "
            "nearest: 4096",
        ),
    ],
)
def test_what_is_not_there_or_does_not_fit_is_named(plan, override, line):
    assert [line] == refusals(plan(override))


def test_a_layout_that_does_not_divide_the_model_is_refused(plan):
    (line,) = refusals(plan("cells.shards=5"))

    assert line.startswith("cells.shards: expected a divisor of the model's ")


def test_a_file_beside_the_command_is_looked_for_where_it_is(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = plan('harness.argv=["python3", "{here}/agent.py"]')

    assert [f"harness.argv: expected a file at {tmp_path}/agent.py, found none"] == refusals(run)
    (tmp_path / "agent.py").touch()
    require_startable(run)


@pytest.mark.parametrize(
    "argv",
    [
        '["sh", "-c", "exit 0"]',
        '["python3", "-m", "json.tool"]',
        '["python3", "{task}.py"]',
        '["{task}"]',
    ],
)
def test_a_command_that_names_no_file_is_not_taken_to_name_one(plan, argv):
    require_startable(plan(f"harness.argv={argv}"))


def test_what_lies_in_an_image_is_not_looked_for(plan):
    require_startable(plan("sandbox.kind=docker", 'harness.argv=["no-such-program"]'))


@pytest.mark.parametrize(
    ("override", "path", "package"),
    [
        ("trackers.wandb=true", "trackers.wandb", "wandb"),
        ("trackers.mlflow=true", "trackers.mlflow", "mlflow"),
        ("trainer.kind=megatron", "trainer.kind", "megatron"),
        ("transport.kind=mooncake", "transport.kind", "mooncake"),
        ("cluster.kind=ray", "cluster.kind", "ray"),
    ],
)
def test_a_package_that_is_asked_for_is_installed(plan, override, path, package, monkeypatch):
    monkeypatch.setattr(preflight, "is_installed", lambda name: name != package)
    line = f"{path}: needs {package}: pip install 'gyre-rl[{package}]'"

    assert [line] == refusals(plan(override))


def test_a_server_without_an_interpreter_of_its_own_is_installed_beside_gyre(plan, monkeypatch):
    run = plan("cells.engine=sglang")
    monkeypatch.setattr(preflight, "is_installed", lambda name: name != "sglang")
    (line,) = refusals(run)

    assert line.startswith("cells.server.python: missing; expected the interpreter of an ")
    monkeypatch.setattr(preflight, "is_installed", lambda name: True)
    require_startable(run)
    require_startable(plan(f"cells.server.python={sys.executable}", "cells.engine=sglang"))


def test_everything_is_said_at_once(plan):
    run = plan("model.device=gpu", "tasks.path=/nowhere", 'harness.argv=["no-such-program"]')
    paths = [line.partition(":")[0] for line in refusals(run)]

    assert ["tasks.path", "harness.argv", "model.device"] == paths


@pytest.mark.parametrize(
    "override",
    [
        "sampling.top_p=0.95",
        "schedule.launch_order=longest",
        "schedule.overcommit=1.5",
        "proxy.context_tokens=5000",
    ],
)
def test_a_run_that_began_with_a_value_goes_on_with_it_and_says_so(plan, override, capsys):
    """What it has sampled so far would be lost otherwise, and no resume may change it."""
    path = override.partition("=")[0]
    (line,) = refusals(plan(override))
    require_startable(plan(override), resumes=True)

    assert line.startswith(f"{path}: expected ")
    assert f"gyre: {line}\n" == capsys.readouterr().err


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """A machine of two GPUs."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (folder / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(num_devices, "__defaults__", (folder,))


SHARED = (
    "cells.share_devices: expected true where cell-0, cell-1 and engine-2 are all on cuda:{}, "
    "because no cell is put on another GPU of a machine, found false; write cells.share_devices = "
    "true, or cells.count = 1 without standalone engines"
)


@pytest.mark.parametrize(
    ("device", "number"), [("", 0), ("model.device=cuda", 0), ("model.device=cuda:1", 1)]
)
def test_cells_share_a_gpu_only_where_the_file_says_so(plan, gpus, device, number, capsys):
    """Also where no device is named, because each would take the first GPU."""
    asked = ("cells.standalone=[4]", *([device] if device else []))

    assert [SHARED.format(number)] == refusals(plan(*asked))
    require_startable(plan(*asked, "cells.share_devices=true"))
    assert "" == capsys.readouterr().err
    require_startable(plan(*asked), resumes=True)
    assert f"gyre: {SHARED.format(number)}\n" == capsys.readouterr().err


@pytest.mark.parametrize("override", ["model.device=cpu", "cells.count=1"])
def test_cells_that_share_no_gpu_need_not_say_so(plan, gpus, override):
    require_startable(plan(override))


def test_a_gpu_that_is_hidden_is_not_shared(plan, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    require_startable(plan())


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, 3), ("", 0), ("-1", 0), ("2", 1), ("0,1,-1,2", 2)]
)
def test_devices_are_counted_by_their_numbers(tmp_path, monkeypatch, visible, expected):
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert expected == num_devices(tmp_path)
