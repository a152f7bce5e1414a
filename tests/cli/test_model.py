"""`gyre model`: what is known, what one is, and requests that make no sense."""

import pytest

from gyre.model.registry import known_models


def test_list_shows_every_model_where_it_is_and_whether_it_is_there(gyre, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = gyre("model", "list")
    lines = [line.split() for line in done.stdout.splitlines()[::2]]

    assert 0 == done.returncode
    assert ["tiny", "there", str(known_models()["tiny"].folder)] == lines[0]
    assert ["smollm2", "missing", str(tmp_path / ".cache/gyre/models/smollm2")] == lines[1]
    assert "fetch it with `gyre model fetch smollm2`" in done.stdout


def test_show_prints_shape_and_parameters(gyre):
    done = gyre("model", "show", "tiny")
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[1:])

    assert (0, "") == (done.returncode, done.stderr)
    assert "qwen2" == rows["architecture"]
    assert "4,096 tokens" == rows["context"]
    assert 200_000 < int(rows["parameters"].replace(",", "")) < 500_000


def test_fetch_leaves_a_model_that_is_there(gyre, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = gyre("model", "fetch", "smollm2", "--to", tmp_path)

    assert (0, f"smollm2: already in {tmp_path}\n") == (done.returncode, done.stdout)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show"], "expected a name, as in `gyre model show smollm2`"),
        (["fetch"], "expected a name, as in `gyre model fetch smollm2`"),
        (["fetch", "tiny"], "tiny: cannot be fetched; smollm2 can"),
        (["list", "tiny"], "tiny: `list` takes no name"),
        (["show", "tiny", "--to", "x"], "--to x: only `fetch` writes a folder"),
        (["show", "no-such"], "no-such: expected tiny, smollm2 or a folder"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_in_one_line(gyre, arguments, reason):
    done = gyre("model", *arguments)

    assert (2, "") == (done.returncode, done.stdout)
    assert 1 == len(done.stderr.splitlines())
    assert f"gyre model: {reason}" in done.stderr
