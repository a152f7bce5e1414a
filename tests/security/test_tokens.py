"""Nothing is done, told or recorded for whoever does not show the right token or key."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.security.inside import ENDPOINTS, TOKEN, inside

from gyre.proxy.admin_api import AdminApi
from gyre.storage.call_log import logs
from gyre.types.errors import GyreError

PACKAGE = Path(__file__).parents[2] / "src" / "gyre"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
WRONG = {
    "none": (),
    "empty": (("authorization", ""),),
    "only the scheme": (("authorization", "Bearer "),),
    "another": (("authorization", "Bearer wrong"),),
    "its beginning": (("authorization", f"Bearer {TOKEN[:-1]}"),),
    "with more behind": (("authorization", f"Bearer {TOKEN}x"),),
    "of another alphabet": (("authorization", "Bearer \u00fc"),),
    "in another header": (("x-api-key", TOKEN),),
}
OPEN = {("engine", "/health"), ("engine", "/health_generate"), ("engine", "/metrics")}


@pytest.mark.parametrize("listener", ENDPOINTS)
def test_every_control_refuses_every_method_without_the_token(listener, tmp_path):
    """FAULTS 35: also methods and paths that do not exist, so that nobody learns which do."""
    paths = {path for _, path in ENDPOINTS[listener]}
    unknown = {"proxy": "/gyre/unknown", "cell": "/cell/unknown"}.get(listener, "/unknown")

    async def scenario():
        async with inside(tmp_path) as listeners:
            client = listeners.of(listener)
            found = [
                (await client.send(method, path, headers=headers)).status
                for path in sorted({*paths, unknown})
                for method in METHODS
                for headers in WRONG.values()
            ]
            return found, listeners.heard, len(listeners.executions.loaded)

    statuses, heard, num_executions = asyncio.run(scenario())

    assert {401} == set(statuses)
    assert ([], 0, []) == (heard, num_executions, list(logs(tmp_path)))


def test_every_control_is_among_those_that_are_tried():
    """Read off the sources, so that a new one is not forgotten here."""
    admin, orders, engine = (
        (PACKAGE / name).read_text(encoding="utf-8")
        for name in ("proxy/admin_api.py", "cell/api.py", "inference/server/server.py")
    )
    controls = re.findall(r'case "[A-Z]+", \[(.*?)\]', admin)
    # A name in a path is tried as x, and that of an engine as e.
    paths = [one.replace('"', "").replace(", ", "/").replace("name", "x") for one in controls]
    written = {
        "proxy": {"/gyre/" + one.replace("engines/x", "engines/e") for one in paths},
        "cell": {f"/cell/{name}" for name in re.findall(r'"([a-z]+)": self\._', orders)},
        "engine": set(re.findall(r'"(/[a-z_0-9/]+)"', engine)),
    }
    tried = {name: {path for _, path in several} for name, several in ENDPOINTS.items()}

    assert len(controls) >= 8
    assert set() == written["proxy"] - tried["proxy"]
    assert set() == written["cell"] - tried["cell"]
    assert {path for _, path in OPEN} == written["engine"] - tried["engine"]


def test_the_right_token_opens_what_the_wrong_ones_do_not(tmp_path):
    async def scenario():
        async with inside(tmp_path) as listeners:
            return [
                (await listeners.of(one).send("GET", path, headers=[_bearer(TOKEN)])).status
                for one, path in (
                    *(("proxy", "/gyre/status"), ("engine", "/model_info")),
                    *(("cell", "/cell/health"), ("desk", "/facts")),
                )
            ]

    # The desk knows only POST, and says so to whoever has its token.
    assert [200, 200, 200, 404] == asyncio.run(scenario())


def test_all_that_needs_no_token_is_known(tmp_path):
    """What answers anybody tells how things stand, and nothing of any execution."""

    async def scenario():
        async with inside(tmp_path) as listeners:
            return {
                (one, path)
                for one in ENDPOINTS
                for path in ("/", "/health", "/health_generate", "/metrics", "/v1/models")
                if (await listeners.of(one).send("GET", path)).status == 200
            }

    found = asyncio.run(scenario())

    of_proxy = {("proxy", path) for path in ("/", "/health", "/metrics", "/v1/models")}
    of_cell = {("cell", path) for _, path in OPEN}
    assert OPEN | of_proxy | of_cell == found


def test_an_empty_token_is_no_token():
    """A file that its writer died over must not become a door that stands open."""
    with pytest.raises(GyreError):
        AdminApi(None, None, "")


async def _taken_over(folder, token):
    """Answers to a take-over, and then to its token and to the one before; what engines see."""
    session = SimpleNamespace(headers={})
    async with inside(folder, session=session) as listeners:
        proxy, before = listeners.proxy, [_bearer(TOKEN)]
        asked = await proxy.post("/gyre/take-over", {"token": token}, headers=before)
        now = await proxy.get("/gyre/status", headers=[_bearer("new-token")])
        old = await proxy.get("/gyre/status", headers=before)
    return asked.status, now.status, old.status, session.headers


def test_after_a_take_over_the_new_token_counts_and_the_old_one_does_not(tmp_path):
    assert (200, 200, 401, {"Authorization": "Bearer new-token"}) == asyncio.run(
        _taken_over(tmp_path, "new-token")
    )


@pytest.mark.parametrize("token", ["", "a\r\nb: c", "a\0", "\x7f", "\u00fc", "\u2028"])
def test_a_token_that_no_header_holds_takes_nothing_over(token, tmp_path):
    """Engines are shown the same token, and would be shown none."""
    assert (400, 401, 200, {}) == asyncio.run(_taken_over(tmp_path, token))


def _bearer(token):
    return ("authorization", f"Bearer {token}")
