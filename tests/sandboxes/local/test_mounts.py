"""What of a root lies below the workspace of a sandbox, and where links in it may lead."""

import asyncio
from pathlib import Path

import pytest
from tests.sandboxes.support.inside import Inside

from gyre.sandboxes.local.mounts import Mount, below_of, clear_ways, refuse_ways_out
from gyre.types.errors import SandboxError


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


def refuse(standing, targets):
    """As `refuse_ways_out`, for what is put onto folders that stand already, by their places."""
    refuse_ways_out(
        [
            *(Mount(at=place, layers=tuple(layers)) for place, layers in standing.items()),
            *(Mount(at=target) for target in targets),
        ]
    )


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

    refuse({"/": layers}, ["/proc", "/home/x", "/app"])
    with pytest.raises(SandboxError, match="/srv/app: a link on the way there"):
        refuse({"/": layers}, ["/proc", "/srv/app"])


def test_links_that_stay_inside_a_root_are_its_own(tmp_path):
    below = layer(tmp_path / "below", lib="usr/lib", srv="usr/../data", hidden="/oldroot")
    (below / "usr").mkdir()
    above = layer(tmp_path / "above")
    (above / "hidden").mkdir()

    refuse({"/": [above, below]}, ["/lib/x/y", "/srv/app", "/hidden/x", "/not/there"])


def test_a_folder_on_top_hides_what_the_root_has_there(tmp_path):
    root = layer(tmp_path / "root", x="/oldroot")
    layer(root / "tmp", app="/oldroot")
    tmp = layer(tmp_path / "tmp", x="/oldroot")
    (tmp / "app").mkdir()

    refuse({"/": [root], "/tmp": [tmp]}, ["/tmp/app/y", "/tmpx/x", "/home"])
    refuse({"/tmp": [tmp]}, ["/x/y", "/tmp", "/tmp/x"])
    with pytest.raises(SandboxError, match=r"/tmp/x/y: .* leads out of it, at /tmp/x$"):
        refuse({"/": [root], "/tmp": [tmp]}, ["/tmp/x/y"])


def test_a_folder_is_put_where_nothing_stands_on_top_yet(tmp_path):
    """What comes later hides it, and was not in the way of what came before."""
    root = layer(tmp_path / "root")
    layer(root / "srv", app="/oldroot")
    srv = layer(tmp_path / "srv")

    refuse({"/": [root], "/srv": [srv]}, ["/srv/app/x"])
    with pytest.raises(SandboxError, match=r"at /srv/app$"):
        refuse({"/": [root]}, ["/srv/app/x", "/srv"])


@pytest.mark.parametrize("link", ["srv", "home/../srv", "srv/../srv/."])
def test_a_link_into_another_folder_is_followed_there(tmp_path, link):
    root = layer(tmp_path / "root", data=link, loop="srv/loop", own="srv/own")
    srv = layer(tmp_path / "srv", results="/oldroot", loop="../loop", own="app")
    standing = {"/": [root], "/srv": [srv]}

    refuse(standing, ["/data/one", "/data/own/two", "/own/three"])
    with pytest.raises(SandboxError, match=r"/data/results/one: .* at /srv/results$"):
        refuse(standing, ["/data/results/one"])
    with pytest.raises(SandboxError, match="/loop/one: "):
        refuse(standing, ["/loop/one"])


def test_a_folder_stands_where_links_led_it(tmp_path):
    root = layer(tmp_path / "root", data="srv/app")
    workspace = layer(tmp_path / "workspace", results="/oldroot")
    standing = {"/": [root], "/data": [workspace]}

    with pytest.raises(SandboxError, match=r"/srv/app/results/one: .* at /srv/app/results$"):
        refuse(standing, ["/srv/app/results/one"])


def test_no_link_leads_to_where_nobody_looks(tmp_path):
    """The kernel's own links lead to whatever its processes have, which is the machine's root."""
    root = layer(tmp_path / "root", data="proc/self/root", out="dev/fd/3")
    workspace = layer(tmp_path / "workspace", data="../usr/share")
    kernel = {"/proc": [], "/dev": []}

    refuse({"/": [root], **kernel}, ["/dev/shm/x", "/proc/x"])
    for target in ("/data/one", "/out/one"):
        with pytest.raises(SandboxError, match=f"{target}: a link on the way there"):
            refuse({"/": [root], **kernel}, [target])
    with pytest.raises(SandboxError, match=r"at /usr$"):
        refuse({"/workspace": [workspace]}, ["/workspace/data/one"])


def test_what_cannot_be_looked_at_is_refused(tmp_path, monkeypatch):
    """bubblewrap sees into folders that their owner has shut against himself."""
    root = layer(tmp_path / "root")
    looked = Path.lstat

    def lstat(path):
        if path == root / "shut" / "results":
            raise PermissionError
        return looked(path)

    layer(root / "shut", results="/oldroot")
    monkeypatch.setattr(Path, "lstat", lstat)

    with pytest.raises(PermissionError):
        refuse({"/": [root]}, ["/shut/results/one"])


def made_root(folder):
    """With programs, once /usr is shown in it."""
    folder.mkdir()
    for name in ("bin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    return folder


def test_an_agent_that_moves_its_workspace_away_reaches_nothing_of_the_machine(tmp_path):
    """What it leaves is met while the machine's own root still stands beside the new one."""
    root, host = made_root(tmp_path / "root"), tmp_path / "host"
    host.mkdir()
    place = {"roots": (root,), "workdir": "/srv/app", "readable": (Path("/usr"),)}
    inside = Inside(tmp_path / "one", place)
    status = asyncio.run(inside.run(f"mv /srv /srv2 && ln -s /oldroot{host} /srv"))

    assert 0 == status
    with pytest.raises(SandboxError, match="/srv/app: a link on the way there"):
        asyncio.run(inside.run("true"))
    assert [] == list(host.iterdir())


@pytest.mark.parametrize("where", ["/tmp", "/var/tmp", "/workspace"])
def test_a_link_in_the_place_of_a_folder_that_is_shown_reaches_nothing(tmp_path, where):
    host = tmp_path / "host"
    host.mkdir()
    place = {"writable": {f"{where}/results/one": tmp_path}}
    inside = Inside(tmp_path / "one", place)
    script = f"rm -rf {where}/results; ln -s /oldroot{host} {where}/results"
    assert 0 == asyncio.run(Inside(tmp_path / "one").run(script))

    with pytest.raises(SandboxError, match="results/one: a link on the way there"):
        asyncio.run(inside.run("true"))
    assert [] == list(host.iterdir())


@pytest.mark.parametrize(
    ("workdir", "left", "shown"),
    [
        ("/srv/app", "ln -s srv/app /data; ln -s {out} /srv/app/results", "/data/results/one"),
        ("/link", "ln -s {out} results", "/srv/app/results/one"),
        ("/srv/app", "ln -s proc/self/root{out} /data", "/data/one"),
        ("/srv/app", "mkdir -p {gone}; ln -s {out} {gone}/results", "{gone}/results/one"),
    ],
    ids=["into the workspace", "led workspace", "kernel", "shown if it were there"],
)
def test_no_way_through_another_folder_reaches_the_machine(tmp_path, workdir, left, shown):
    """As a judge is shown where its results go, in a root that the agent has written to."""
    root, host = made_root(tmp_path / "root"), tmp_path / "host"
    host.mkdir()
    (root / "srv" / "app").mkdir(parents=True)
    (root / "link").symlink_to("srv/app")
    words = {"out": f"/oldroot{host}", "gone": tmp_path / "gone"}
    readable = (Path("/usr"), tmp_path / "gone")
    place = {"roots": (root,), "workdir": workdir, "readable": readable}
    agent = Inside(tmp_path / "one", place)
    place |= {"writable": {shown.format(**words): tmp_path}}
    judge = Inside(tmp_path / "one", place)

    assert 0 == asyncio.run(agent.run(left.format(**words)))
    with pytest.raises(SandboxError, match="one: a link on the way there"):
        asyncio.run(judge.run("true"))
    assert [] == list(host.iterdir())


def test_what_programs_left_on_the_way_is_hidden_and_what_an_image_has_is_not(tmp_path):
    upper, left = layer(tmp_path / "upper"), layer(tmp_path / "left", work="/workspace")
    (left / "logs").write_text("")
    (left / "srv").mkdir()
    (left / "srv" / "app").symlink_to("elsewhere")
    clear_ways(upper, left, ["/", "/work/runs/one", "/logs", "/srv/app/x", "/data/x", "/srv/b"])

    found = {str(one.relative_to(upper)) for one in upper.rglob("*")}
    assert {"work", "work/runs", "work/runs/one", "logs", "srv", "srv/app", "srv/app/x"} == found


@pytest.mark.parametrize("left", ["touch {top}", "ln -s /srv {top}", "ln -s /oldroot/{top} {top}"])
def test_no_agent_can_keep_itself_from_being_judged(tmp_path, left):
    """SPEC 6.1: whatever it leaves in its root, what it left is assessed."""
    root = made_root(tmp_path / "root")
    (root / "srv" / "app").mkdir(parents=True)
    results = tmp_path / "results"
    results.mkdir()
    top = f"/{results.parts[1]}"
    place = {"roots": (root,), "workdir": "/srv/app", "readable": (Path("/usr"),)}
    # Nothing of this machine is shown there to the agent.
    agent = Inside(tmp_path / "one", place)
    assert 0 == asyncio.run(agent.run(f"rm -rf {top} /logs; {left.format(top=top)}; touch /logs"))
    written = tmp_path / "one" / "place" / "root"
    place |= {
        "roots": (root, written),
        "left": written,
        "stacks": True,
        "writable": {str(results): results, "/logs/verifier": results},
    }
    judge = Inside(tmp_path / "two", place)
    script = f"echo 1 > {results}/score && cat /logs/verifier/score && ls /srv/app"

    assert 0 == asyncio.run(judge.run(script)), judge.output
    assert ("1\n", "1\n") == (judge.output, (results / "score").read_text())
