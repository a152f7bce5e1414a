"""The stage of the flows, for faults as well; what takes minutes is left to `make chaos`."""

from tests.flows.conftest import stage

__all__ = ["stage"]


def pytest_collection_modifyitems(config, items):
    """Long ones are left out unless they are asked for with -m chaos."""
    if "chaos" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("chaos")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
