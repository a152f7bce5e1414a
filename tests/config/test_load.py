"""A run file becomes a frozen tree, or every mistake in it has a line of its own."""

import dataclasses

import pytest
from tests.config.support.tables import mistakes, read, sections, tables

from gyre.config.loader import load
from gyre.config.run_config import JsonlTasksConfig
from gyre.config.settings import settings
from gyre.config.settings import tables as known_tables
from gyre.types.errors import ConfigError

SOURCES = '"folder", "jsonl", "harbor", "deepswe", "nl2repo", "python"'
"""Kinds of sources of tasks, as they are listed."""


def test_what_is_left_out_has_its_default():
    config = read().config

    assert "tiny" == config.model.name
    assert (0.1, 5.0) == (config.schedule.supply_fraction, config.schedule.supply_dwell_s)
    assert (1e-6, 5) == (config.optimizer.lr, config.draw.max_trajectories)
    assert ("local", True) == (config.sandbox.kind, config.trackers.tensorboard)
    assert ({}, ()) == (config.harness.env, config.cells.standalone)


def test_the_tree_is_frozen():
    config = read().config

    with pytest.raises(dataclasses.FrozenInstanceError):
        config.run.seed = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.run = config.run


def test_values_have_the_types_that_their_fields_name():
    held = {"slots": 2, "tasks": {"kind": "jsonl", "path": "held"}}
    config = read(
        cells={"count": 2, "capacity": 8, "standalone": [4, 5], "nodes": 2},
        harness={"argv": ["a", "b"], "env": {"LANG": "C"}},
        evaluation=held,
        draw={"max_trajectories": "all"},
    ).config

    assert ((4, 5), 2.0, float) == (
        config.cells.standalone,
        config.cells.nodes,
        type(config.cells.nodes),
    )
    assert (("a", "b"), {"LANG": "C"}) == (config.harness.argv, config.harness.env)
    assert JsonlTasksConfig(kind="jsonl", path="held") == config.evaluation.tasks
    assert "all" == config.draw.max_trajectories


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"run": {"nam": "a"}},
            "run.nam: unknown key; nearest: name; known here: name, folder, seed",
        ),
        ({"run": {"steps": 3}}, "run.steps: unknown key; there is schedule.steps; known here: "),
        ({"shedule": {}}, "shedule: unknown table; nearest: schedule; known here: run, model, "),
        ({"steps": 3}, "steps: unknown table; there is schedule.steps; known here: run, "),
        ({"a b": 3}, '"a b": unknown table; known here: run, '),
        (
            {"tasks": {"kind": "folder", "path": "a", "pth": "b"}},
            "tasks.pth: unknown key; nearest: path; known here: kind, path",
        ),
        (
            {"evaluation": {"tasks": {"kind": "jsonl", "path": "a", "knd": 1}}},
            "evaluation.tasks.knd: unknown key; nearest: kind; known here: kind, path",
        ),
    ],
)
def test_unknown_keys_at_every_level_come_with_the_nearest(changes, expected):
    (found,) = mistakes(**changes)

    assert found.startswith(expected)


@pytest.mark.parametrize("path", sorted({path for path, _ in sections()}))
def test_every_table_refuses_a_key_that_nobody_knows(path):
    whole = tables(
        evaluation={"tasks": {"kind": "folder", "path": "a"}},
        evaluate={"judge": {"url": "http://here/v1", "model": "judge"}},
    )
    level = whole
    for key in path.split("."):
        level = level.setdefault(key, {})
    level["zzz"] = 1
    (found,) = mistakes(**whole)

    assert found.startswith(f"{path}.zzz: unknown key; known here: ")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"run": 3}, "run: expected a table, found 3"),
        ({"tasks": "folder"}, 'tasks: expected a table, found "folder"'),
        ({"run": {"seed": True}}, "run.seed: expected a whole number of at least 0, found true"),
        (
            {"run": {"seed": 2.6}},
            "run.seed: expected a whole number of at least 0, found 2.6; nearest: 3",
        ),
        (
            {"run": {"seed": -1}},
            "run.seed: expected a whole number of at least 0, found -1; nearest: 0",
        ),
        ({"run": {"name": 3}}, "run.name: expected text that is not empty, found 3"),
        ({"run": {"name": ""}}, 'run.name: expected text that is not empty, found ""'),
        (
            {"optimizer": {"lr": "1e-6"}},
            'optimizer.lr: expected a number of at least 0, found "1e-6"',
        ),
        (
            {"optimizer": {"lr": float("nan")}},
            "optimizer.lr: expected a finite number of at least 0, found nan",
        ),
        (
            {"optimizer": {"lr": float("inf")}},
            "optimizer.lr: expected a finite number of at least 0, found inf",
        ),
        ({"optimizer": {"eps": 0}}, "optimizer.eps: expected a number above 0, found 0"),
        (
            {"proxy": {"port": 70_000}},
            "proxy.port: expected a whole number of at least 0 and at most 65535, found 70000"
            "; nearest: 65535",
        ),
        ({"trainer": {"checkpoint": 1}}, "trainer.checkpoint: expected true or false, found 1"),
        (
            {"objective": {"kind": "GSPO"}},
            'objective.kind: expected one of "gyre", "grpo", "gspo", found "GSPO"; nearest: "gspo"',
        ),
        (
            {"tasks": {"kind": "json", "path": "a"}},
            f'tasks.kind: expected one of {SOURCES}, found "json"; nearest: "jsonl"',
        ),
        (
            {"tasks": {"kind": [], "path": "a"}},
            f"tasks.kind: expected one of {SOURCES}, found []",
        ),
        ({"tasks": {"path": "a"}}, f"tasks.kind: missing; expected one of {SOURCES}"),
        ({"tasks": None}, f"tasks.kind: missing; expected one of {SOURCES}"),
        ({"model": None}, "model.name: missing; expected text that is not empty"),
        (
            {"harness": {"argv": "agent"}},
            'harness.argv: expected a list of one or more texts, found "agent"',
        ),
        ({"harness": {"argv": []}}, "harness.argv: expected a list of one or more texts, found []"),
        ({"harness": {"argv": ["a", 3]}}, "harness.argv[1]: expected text, found 3"),
        (
            {"harness": {"argv": ["a"], "env": {"env": 3}}},
            "harness.env.env: expected text, found 3",
        ),
        (
            {"cells": {"count": 2, "capacity": 8, "standalone": [4, 0]}},
            "cells.standalone[1]: expected a whole number of at least 1, found 0",
        ),
        (
            {"draw": {"max_trajectories": "al"}},
            'draw.max_trajectories: expected a whole number of at least 1 or "all", found "al"'
            '; nearest: "all"',
        ),
        (
            {"draw": {"max_trajectories": 0}},
            'draw.max_trajectories: expected a whole number of at least 1 or "all", found 0'
            "; nearest: 1",
        ),
        (
            {"draw": {"max_trajectories": []}},
            'draw.max_trajectories: expected a whole number of at least 1 or "all", found []',
        ),
        (
            {"evaluation": {"slots": 1, "tasks": {"kind": "jsonl"}}},
            "evaluation.tasks.path: missing; expected text that is not empty",
        ),
        (
            {"run": {"name": ["x" * 70]}},
            f'run.name: expected text that is not empty, found ["{"x" * 55}...',
        ),
    ],
)
def test_wrong_values_come_with_what_is_expected_and_the_nearest(changes, expected):
    assert [expected] == mistakes(**changes)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (name, key)
        for name, table in known_tables().items()
        for section in table.sections[:1]
        for key in settings(section)
        if not (name == "tasks" and key == "kind")
    ],
)
def test_every_key_refuses_a_table_of_tables_once(table, key):
    changed = dict(tables().get(table, {})) | {key: {"x": {"y": 1}}}
    found = mistakes(**{table: changed})

    assert found
    assert all(one.startswith(f"{table}.{key}") for one in found)


def test_several_mistakes_are_named_together():
    found = mistakes(
        "cells",
        "optimizer.lr=fast",
        model=None,
        schedule={"groups_per_batch": 0, "executions_per_group": 1, "placment": "async"},
        deadlines={"agent_s": 10, "overall_s": 5},
        other=3,
    )

    assert [
        "cells: expected section.key=value",
        "other: unknown table",
        "model.name: missing",
        "schedule.groups_per_batch: expected a whole number of at least 1",
        "schedule.executions_per_group: expected a whole number of at least 2",
        "schedule.placment: unknown key",
        "optimizer.lr: expected a number of at least 0",
        "deadlines.overall_s: expected at least deadlines.agent_s",
    ] == [one.split(",")[0].split(";")[0] for one in found]


def test_the_refusal_says_where_and_how_many():
    with pytest.raises(
        ConfigError, match=r"^run\.toml: 2 mistakes\n  run\.seed: .*\n  proxy\.x: "
    ) as one:
        _ = read("run.seed=-1", "proxy.x=1").config

    assert 3 == len(str(one.value).splitlines())
    with pytest.raises(ConfigError, match=r"^run\.toml: 1 mistake\n"):
        _ = read("run.seed=-1").config


def test_sound_tables_are_there_though_others_are_not():
    found = read("run.seed=-1")

    assert "run" not in found.sections
    assert 2 == found.sections["cells"].count


SCHEDULE = {"groups_per_batch": 4, "executions_per_group": 4}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"schedule": {**SCHEDULE, "depth": 2, "staleness": 1}},
            "schedule.staleness and schedule.depth: each decides what is dispatched; "
            "expected at most one of them",
        ),
        (
            {"schedule": {**SCHEDULE, "staleness": 0.5, "steps_per_burst": 3}},
            "schedule.staleness: expected at least 1.0, which bursts of 3 steps have by "
            "themselves, found 0.5; nearest: 1.0",
        ),
        (
            {"schedule": {**SCHEDULE, "staleness": 0.6}},
            "schedule.staleness: expected 0.0 and a whole number of groups of a batch of 4, "
            "found 0.6; nearest: 0.5 or 0.75",
        ),
        (
            {"deadlines": {"agent_s": 8000}},
            "deadlines.overall_s: expected at least deadlines.agent_s, found 7200.0"
            "; nearest: 8000.0",
        ),
        (
            {"objective": {"clip_low": 2.0}},
            "objective.clip_low: expected a range of ratios, found 2.0 to 1.005",
        ),
        (
            {"objective": {"clip_high": 0.5}},
            "objective.clip_high: expected a range of ratios, found 0.995 to 0.5",
        ),
        (
            {"router": {"retry_first_s": 9.0}},
            "router.retry_most_s: expected at least router.retry_first_s, found 5.0; nearest: 9.0",
        ),
        (
            {"evaluation": {"slots": 3}},
            "evaluation.tasks: missing; expected a table, because evaluation.slots is 3",
        ),
        (
            {"harness": {}},
            "harness.argv: missing; expected a list of one or more texts, because harness.kind is "
            '"command"',
        ),
        (
            {"harness": {"kind": "codex", "argv": ["codex"]}},
            'harness.argv: has no meaning when harness.kind is "codex"',
        ),
        (
            {"harness": {"argv": ["a"], "version": "1.0"}},
            'harness.version: has no meaning when harness.kind is "command"',
        ),
        (
            {"cells": {"count": 1, "capacity": 1, "engine": "vlm"}},
            "cells.engine: expected embedded, vllm, sglang or MODULE:FUNCTION, found 'vlm'",
        ),
        (
            {"cells": {"count": 1, "capacity": 1, "server": {"args": ["--quick"]}}},
            'cells.server: has no meaning when cells.engine is "embedded"',
        ),
        (
            {"transport": {"kind": "tcp", "protocol": "rdma"}},
            'transport.protocol: has no meaning when transport.kind is "tcp"',
        ),
        (
            {"transport": {"devices": "mlx5_0"}},
            'transport.devices: has no meaning when transport.kind is "shared"',
        ),
    ],
)
def test_values_that_cannot_stand_together(changes, expected):
    assert [expected] == mistakes(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": {**SCHEDULE, "staleness": 1.25, "steps_per_burst": 3}},
        {"schedule": {**SCHEDULE, "staleness": 0}},
        {"deadlines": {"agent_s": 5, "overall_s": 5}},
        {"objective": {"clip_low": 1.0, "clip_high": 1.0}},
        {"evaluation": {"tasks": {"kind": "folder", "path": "held"}}},
    ],
)
def test_values_that_just_can(changes):
    assert [] == mistakes(**changes)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "run.toml: expected a run file: No such file or directory"),
        (b"[run", "run.toml: not TOML: "),
        (b'[run]\nname = "\xff"', "run.toml: not TOML: "),
        (b"run = " + b"[" * 5_000, "run.toml: not TOML: "),
        (b"run = " + b"1" * 5_000, "run.toml: not TOML: "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_at_once(tmp_path, content, expected):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as error:
        load(path)
    assert expected in str(error.value)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="expected a run file: Is a directory"):
        load(tmp_path)


def test_numbers_that_no_float_holds_are_refused():
    found = mistakes(
        f"schedule.steps={2**63}",
        f"optimizer.lr={10**400}",
        f"schedule.groups_per_batch={'9' * 5_000}",
        cells={"count": 1, "capacity": 2, "standalone": [1, -(2**63) - 1]},
        schedule={**SCHEDULE, "staleness": 1e300},
    )

    assert [
        "schedule.steps: expected a number of 64 bits, found 9223372036854775808",
        "cells.standalone[1]: expected a number of 64 bits, found -9223372036854775809",
    ] == found[:2]
    assert found[2].startswith("optimizer.lr: expected a number of 64 bits, found 1000")
    assert 3 == len(found)
    assert ["schedule.staleness: expected a number of at least 0 and at most 1000000"] == [
        one.split(",")[0] for one in mistakes("schedule.staleness=1e300")
    ]
    assert [] == mistakes(f"schedule.steps={2**63 - 1}", f"schedule.steps_per_burst={2**63 - 1}")


def test_where_values_come_from():
    found = read("cells.count=3", 'harness.env={A="b"}', run={"name": "a"})

    assert "override" == found.origin(("cells", "count"))
    assert "file" == found.origin(("cells", "capacity"))
    assert "default" == found.origin(("cells", "nodes"))
    assert "override" == found.origin(("harness", "env", "A"))
    assert "file" == found.origin(("run", "name"))


def test_a_text_that_no_program_can_be_given_is_named():
    found = mistakes(run={"folder": "a\0b"}, harness={"argv": ["agent", "c\0"]})

    assert [
        'run.folder: expected text without a null character, found "a\\u0000b"',
        'harness.argv[1]: expected text without a null character, found "c\\u0000"',
    ] == found
