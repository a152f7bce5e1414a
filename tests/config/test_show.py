"""The tree as a file again: it loads as the same tree, whatever its values are."""

import tomllib

import pytest
from hypothesis import given
from tests.config.support.tables import read
from tests.config.support.values import run_tables

from gyre.config.loader import loaded
from gyre.config.run_config import RunConfig
from gyre.config.toml import as_toml, settings_of, spelled


@given(run_tables())
def test_every_tree_comes_back_from_its_own_lines(tables):
    found = loaded("run.toml", tables)
    assert set(tables) == set(found.sections)
    config = RunConfig(**found.sections)
    again = loaded("again.toml", tomllib.loads("\n".join(as_toml(config, found.origin))))

    assert config == RunConfig(**again.sections)
    assert found.mistakes == again.mistakes


def test_defaults_are_written_out_and_what_is_not_set_is_a_comment():
    lines = as_toml(read(harness={"argv": ["a"], "env": {"A B": 'c"\n'}}).config)
    cells = lines.index("[cells]")

    assert ["count = 2", "capacity = 8", "standalone = []", "nodes = 1.0"] == (
        lines[cells + 1 : cells + 5]
    )
    assert "# kv_tokens =" in lines
    env = lines.index("[harness.env]")
    assert '"A B" = "c\\"\\n"' == lines[env + 1]


def test_origins_stand_behind_the_values():
    found = read("cells.count=3")
    lines = as_toml(found.config, found.origin)

    assert "count = 3  # override" in lines
    assert "capacity = 8  # file" in lines
    assert "nodes = 1.0  # default" in lines
    assert "# kv_tokens =  # not set" in lines


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "true"),
        (3, "3"),
        (1e-15, "1e-15"),
        (float("inf"), "inf"),
        ("a\x00\x7f\\", '"a\\u0000\\u007f\\\\"'),
        ([1, [True]], "[1, [true]]"),
        ({"a": {"b c": 1}}, '{ a = { "b c" = 1 } }'),
        ({}, "{}"),
        (tomllib.loads("a = 2026-11-16")["a"], "2026-11-16"),
    ],
)
def test_values_are_spelled_as_toml_reads_them(value, expected):
    assert expected == spelled(value)
    assert value == tomllib.loads(f"value = {expected}")["value"]


def test_the_settings_of_a_run_are_flat_and_hold_only_what_is_set():
    found = settings_of(read("schedule.steps=6", "cells.standalone=[4, 8]").config)

    assert (6, "[4, 8]") == (found["schedule.steps"], found["cells.standalone"])
    assert "schedule.depth" not in found
    assert all(isinstance(one, str | int | float | bool) for one in found.values())


def test_what_looks_like_a_secret_is_not_among_the_settings():
    argv = [
        "run",
        "--api-key",
        "s3cret",
        "--token=s3cret",
        "--max-tokens=7",
        "--password",
        "s3cret",
    ]
    judge = {"url": "https://me:s3cret@host/v1?api_key=s3cret&a=1", "model": "m"}
    found = settings_of(
        read(
            harness={"argv": argv, "env": {"ANY": "s3cret"}},
            evaluate={"judge": judge},
        ).config
    )

    assert "s3cret" not in str(found)
    assert "..." == found["harness.env.ANY"]
    assert "https://host/v1?api_key=...&a=1" == found["evaluate.judge.url"]
    assert (
        '["run", "--api-key", "...", "--token=...", "--max-tokens=7", "--password", "..."]'
        == found["harness.argv"]
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("tool --token s3cret --fast", "tool --token ... --fast"),
        ("curl -H 'Authorization: Bearer s3cret' h", "curl -H 'Authorization: Bearer ... h"),
        ("X-Api-Key: s3cret", "X-Api-Key: ..."),
        ("http://me:s3/cr@et@host/v1", "http://host/v1"),
        ("git+https://host:8080/repo@v1.0", "git+https://host:8080/repo@v1.0"),
        ("write 7 tokens to token.txt", "write 7 tokens to token.txt"),
    ],
)
def test_a_secret_within_a_command_is_not_told(said, told):
    found = settings_of(read(harness={"argv": ["sh", "-c", said]}).config)

    assert f'["sh", "-c", "{told}"]' == found["harness.argv"]


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\x9b2J", "\u202eabc", "\U000e0001", "a\tb\r\n", "ä 漢"]
)
def test_text_is_spelled_so_that_it_steers_no_terminal_and_reads_back_the_same(text):
    line = spelled(text)

    assert line.isprintable()
    assert {"value": text} == tomllib.loads(f"value = {line}")
