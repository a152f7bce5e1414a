"""`gyre config`: what it prints, where, and with which exit status."""

import json
import tomllib
from pathlib import Path

import pytest

from gyre.config.loader import loaded
from gyre.config.presets import PRESETS
from gyre.controller.run_dir import checked
from gyre.simulator.paper import PAPER

EXAMPLE = Path(__file__).parents[2] / "examples" / "run.toml"


def test_a_good_file_has_no_mistakes(gyre):
    done = gyre("config", "check", EXAMPLE)

    assert (0, f"{EXAMPLE}: no mistakes\n", "") == (done.returncode, done.stdout, done.stderr)


def test_all_mistakes_are_said_at_once_with_status_2(gyre):
    done = gyre("config", "check", EXAMPLE, "run.sed=3", "schedule.min_valid=9", "cells.capacity=8")

    assert (2, "") == (done.returncode, done.stdout)
    assert [
        f"gyre config: {EXAMPLE}: 2 mistakes",
        "  run.sed: unknown key; nearest: seed; known here: name, folder, seed",
        "  schedule.min_valid: 9 rewards cannot come from a group of 4; the most is 4",
    ] == done.stderr.splitlines()


@pytest.mark.parametrize("options", [[], ["--origin"]])
def test_what_is_shown_is_a_run_file_that_shows_the_same(gyre, tmp_path, options):
    first = gyre("config", "show", EXAMPLE, "cells.count=3", "harness.env.LANG=C", *options)
    path = tmp_path / "shown.toml"
    path.write_text(first.stdout)
    again = gyre("config", "show", path)
    tables = tomllib.loads(first.stdout)

    assert (0, 0) == (first.returncode, gyre("config", "check", path).returncode)
    assert tables == tomllib.loads(again.stdout)
    assert (3, 1e-6) == (tables["cells"]["count"], tables["optimizer"]["lr"])
    assert ("# override" in first.stdout) == bool(options)


def test_a_file_with_mistakes_is_not_shown(gyre):
    done = gyre("config", "show", EXAMPLE, "cells.count=0")

    assert (2, "") == (done.returncode, done.stdout)
    assert "cells.count: expected a whole number of at least 1, found 0" in done.stderr


def test_the_schema_is_json(gyre):
    done = gyre("config", "schema")

    assert 0 == done.returncode
    assert "schedule" in json.loads(done.stdout)["properties"]


def test_a_key_is_explained(gyre):
    done = gyre("config", "explain", "schedule.rescue_s")

    assert 0 == done.returncode
    assert done.stdout.startswith("schedule.rescue_s = a number above 0 (default 60.0)\n")
    assert 20 < len(gyre("config", "explain").stdout.splitlines())


def test_presets_are_listed_one_a_line(gyre):
    lines = gyre("config", "presets").stdout.splitlines()

    assert list(PRESETS) == [line.split()[0] for line in lines]
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_written_out_says_the_same_as_its_name(gyre, tmp_path, name):
    """Both are the paper's, because the file leaves its sizes to them."""
    rest = tomllib.loads(EXAMPLE.read_text()) | {"schedule": {}, "cells": {}}
    whole = rest | tomllib.loads(gyre("config", "presets", name).stdout)
    found = [checked(loaded(name, one)).shape for one in (whole, rest | {"preset": name})]

    assert [PAPER[name].shape] * 2 == found


def test_a_check_says_where_a_file_departs_from_its_preset(gyre):
    own = gyre("config", "check", EXAMPLE, "preset=E0", "schedule.steps_per_burst=").stdout
    none = gyre("config", "check", EXAMPLE, "preset=nl2repo-1-gyre").stdout

    # The file's phi is the preset's.
    assert f"{EXAMPLE}: no mistakes; preset E0\n" == own
    assert f"{EXAMPLE}: no mistakes; preset nl2repo-1-gyre\n" == none


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["check"], "expected a run file, as in `gyre config check examples/run.toml`"),
        (["show"], "expected a run file, as in `gyre config show examples/run.toml`"),
        (["check", "no.toml"], "no.toml: expected a run file: No such file or directory"),
        (["check", EXAMPLE, "--origin"], "--origin: only `show` has it, not `check`"),
        (["schema", "a.toml"], "a.toml: `schema` is of every run file, and takes none"),
        (["explain", "run", "cells"], "cells: `explain` takes one table or key"),
        (["presets", "A0", "A1"], "A1: `presets` takes one preset, or none"),
        (["presets", "A9"], 'preset: expected the name of a preset, found "A9"; nearest: "A3"; '),
        (["explain", "runs"], "runs: unknown table; nearest: run; known here: "),
    ],
)
def test_what_cannot_be_asked_is_refused(gyre, arguments, expected):
    done = gyre("config", *arguments)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(f"gyre config: {expected}")


def test_arguments_that_are_no_text_are_refused(program):
    """The shell passes bytes on, whatever they are."""
    done = program("config", "check", EXAMPLE, "run.name=\udcff")

    assert 2 == done.returncode
    assert "run.name=\\udcff: expected text in UTF-8" in done.stderr
