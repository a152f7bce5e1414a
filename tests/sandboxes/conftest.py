"""One container daemon for all tests of containers, where this machine is expected to have one."""

import pytest
from tests.sandboxes.support.daemon import expected, place, running


def pytest_collection_modifyitems(config, items):
    """They start a daemon; where there is none, by a reason in expected.toml, they are left out."""
    here = [item for item in items if "docker" in item.path.name]
    for item in here:
        item.add_marker("slow")
    if isinstance(expected("docker"), str):
        config.hook.pytest_deselected(items=here)
        items[:] = [item for item in items if item not in here]


@pytest.fixture(scope="session")
def docker():
    """Its socket."""
    with place() as folder, running(folder) as socket:
        yield socket
