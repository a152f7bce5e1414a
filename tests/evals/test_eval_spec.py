"""What a command line comes to: a checked tree, a folder, and the weights that are served."""

import json
from pathlib import Path

import pytest

from gyre.evals.plan import EvalArguments, ServedWeights, folder_for, rollout_config, weights_of
from gyre.types.errors import ConfigError


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"id": "a", "instruction": "b", "evaluation": {"argv": ["true"]}}))
    return str(path)


def asked(path, **changed):
    given = {
        "tasks": path,
        "engines": (),
        "harness": None,
        "argv": ("agent",),
        "members": 2,
        "concurrency": 3,
        "config": None,
        "overrides": (),
    }
    return EvalArguments(**(given | changed))


def config(path, **changed):
    return rollout_config(asked(path, **changed), where="gyre rollout", model="tiny")


def test_a_command_line_is_checked_as_a_run_file_is(tasks):
    found = config(tasks, overrides=("deadlines.agent_s=5", "sampling.temperature=0"))

    assert (5.0, 0.0) == (found.deadlines.agent_s, found.sampling.temperature)
    assert (("agent",), tasks) == (found.harness.argv, found.tasks.path)
    assert ("tiny", 0) == (found.model.name, found.proxy.port)
    with pytest.raises(ConfigError, match=r"deadlines\.agents: unknown key"):
        config(tasks, overrides=("deadlines.agents=5",))


def test_a_run_file_gives_what_is_not_said(tasks, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nname = "smollm2"\nfamily = "qwen3"\n[schedule]\nnonsense = 1\n'
        '[harness]\nargv = ["other"]\n[sampling]\nmax_tokens = 7\n'
    )
    found = config(tasks, config=path, argv=())

    assert ("tiny", "qwen3") == (found.model.name, found.model.family)
    assert (("other",), 7) == (found.harness.argv, found.sampling.max_tokens)
    assert ("agent",) == config(tasks, config=path).harness.argv


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"argv": ()}, "expected --harness NAME, a command after --, or --config"),
        ({"harness": "codex"}, "found both"),
        ({"members": 0}, "expected --n and --concurrency of 1 or more, found 0 and 3"),
        ({"concurrency": 0}, "found 2 and 0"),
        ({"tasks": "/no/such"}, "/no/such: expected a file or folder of tasks"),
        ({"harness": "nobody", "argv": ()}, r"harness\.kind"),
        ({"config": Path("/no/such.toml")}, "--config /no/such.toml: expected a run file"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tasks, changed, problem):
    with pytest.raises(ConfigError, match=problem):
        config(tasks, **changed)


def test_a_folder_is_new_or_the_first_free_one(tmp_path):
    (tmp_path / "rollout-001").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    assert tmp_path / "rollout-002" == folder_for(None, beside=tmp_path / "rollout")
    assert tmp_path / "mine" == folder_for(tmp_path / "mine", beside=tmp_path)
    with pytest.raises(ConfigError, match="expected a new folder"):
        folder_for(tmp_path / "full", beside=tmp_path)


def test_a_run_is_told_from_a_model_by_its_weights(tmp_path):
    for name in ("v000002", "v000010", "v000011.partial", "other"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    weights = tmp_path.resolve() / "checkpoints"

    assert (ServedWeights(model="tiny"), None) == weights_of("tiny", None)
    assert (ServedWeights(model=str(weights / "v000010"), version=10), tmp_path) == weights_of(
        str(tmp_path), None
    )
    assert 2 == weights_of(str(tmp_path), 2)[0].version
    with pytest.raises(ConfigError, match="expected version 3; found versions: 2, 10"):
        weights_of(str(tmp_path), 3)
    with pytest.raises(ConfigError, match="expected a run with weights, found tiny"):
        weights_of("tiny", 3)
