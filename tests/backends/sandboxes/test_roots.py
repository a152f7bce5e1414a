"""What of a root lies below the workspace of a sandbox, and where links in it may lead."""

import asyncio
from pathlib import Path

import pytest
from tests.backends.sandboxes.inside import LAUNCHERS, Inside

from gyre.backends.sandboxes.roots import below_of, refuse_ways_out
from gyre.words.errors import SandboxError


def test_a_folder_of_the_root_lies_below(tmp_path):
    (tmp_path / "root" / "srv" / "app").mkdir(parents=True)
    (tmp_path / "root" / "work").symlink_to("srv/app")
    app = tmp_path / "root" / "srv" / "app"

    assert (app,) == below_of([tmp_path / "root", tmp_path / "none"], "/srv/app")
    assert (app,) == below_of([tmp_path / "root"], "/work")


@pytest.mark.parametrize("target", ["{host}", "../host", "srv"])
def test_links_in_a_root_lead_to_nothing_of_the_machine(tmp_path, target):
    (tmp_path / "host" / "app").mkdir(parents=True)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "srv").symlink_to(target.format(host=tmp_path / "host"))

    assert () == below_of([tmp_path / "root"], "/srv/app")


def layer(folder, **links):
    folder.mkdir()
    for name, target in links.items():
        (folder / name).symlink_to(target)
    return folder


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ({"srv": "/oldroot/etc"}, {}),
        ({"srv": "../oldroot/etc"}, {}),
        ({"srv": "other", "other": "/oldroot"}, {}),
        ({"srv": "self/../oldroot"}, {"self": "."}),
        ({"srv": "srv"}, {}),
        ({"data": "/oldroot"}, {"srv": "data"}),
    ],
)
def test_a_link_that_leads_out_of_a_root_is_refused(tmp_path, above, below):
    layers = [layer(tmp_path / "above", **above), layer(tmp_path / "below", **below)]

    refuse_ways_out({"/": layers}, ["/proc", "/home/x", "/app"])
    with pytest.raises(SandboxError, match="/srv/app: a link on the way there"):
        refuse_ways_out({"/": layers}, ["/proc", "/srv/app"])


def test_links_that_stay_inside_a_root_are_its_own(tmp_path):
    below = layer(tmp_path / "below", lib="usr/lib", srv="usr/../data", hidden="/oldroot")
    (below / "usr").mkdir()
    above = layer(tmp_path / "above")
    (above / "hidden").mkdir()

    refuse_ways_out({"/": [above, below]}, ["/lib/x/y", "/srv/app", "/hidden/x", "/not/there"])


def test_a_folder_on_top_hides_what_the_root_has_there(tmp_path):
    root = layer(tmp_path / "root", tmp="/oldroot", x="/oldroot")
    tmp = layer(tmp_path / "tmp", x="/oldroot")
    (tmp / "app").mkdir()

    refuse_ways_out({"/": [root], "/tmp": [tmp]}, ["/tmp/app/y", "/tmpx/x", "/home"])
    refuse_ways_out({"/tmp": [tmp]}, ["/x/y", "/tmp"])
    with pytest.raises(SandboxError, match="leads out of /tmp"):
        refuse_ways_out({"/": [root], "/tmp": [tmp]}, ["/tmp/x/y"])


@pytest.mark.parametrize("by", [one for one in LAUNCHERS if LAUNCHERS[one] is not None])
def test_an_agent_that_moves_its_workspace_away_reaches_nothing_of_the_machine(tmp_path, by):
    """What it leaves is met while the machine's own root still stands beside the new one."""
    root, host = tmp_path / "root", tmp_path / "host"
    for folder in (root, host):
        folder.mkdir()
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    place = {"roots": (root,), "workdir": "/srv/app", "readable": (Path("/usr"),)}
    inside = Inside(tmp_path / "one", place, {"launcher": LAUNCHERS[by]})
    status = asyncio.run(inside.run(f"mv /srv /srv2 && ln -s /oldroot{host} /srv"))

    assert 0 == status
    with pytest.raises(SandboxError, match="/srv/app: a link on the way there"):
        asyncio.run(inside.run("true"))
    assert [] == list(host.iterdir())


@pytest.mark.parametrize("by", [one for one in LAUNCHERS if LAUNCHERS[one] is not None])
@pytest.mark.parametrize("where", ["/tmp", "/workspace"])
def test_a_link_in_the_place_of_a_folder_that_is_shown_reaches_nothing(tmp_path, by, where):
    host = tmp_path / "host"
    host.mkdir()
    place = {"writable": {f"{where}/results/one": tmp_path}}
    inside = Inside(tmp_path / "one", place, {"launcher": LAUNCHERS[by]})
    script = f"rm -rf {where}/results; ln -s /oldroot{host} {where}/results"
    assert 0 == asyncio.run(Inside(tmp_path / "one", {}, {"launcher": LAUNCHERS[by]}).run(script))

    with pytest.raises(SandboxError, match="results/one: a link on the way there"):
        asyncio.run(inside.run("true"))
    assert [] == list(host.iterdir())
