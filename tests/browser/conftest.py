"""One browser for the tests of a file, where this machine is expected to have one."""

from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.browser.chromium import expected, launched
from tests.browser.shown import Shown

HERE = Path(__file__).parent
WINDOW = {"width": 1280, "height": 900}


def pytest_collection_modifyitems(config, items):
    """Where there is no browser, by a reason in expected.toml, they are left out."""
    if isinstance(expected(), str):
        here = [item for item in items if item.path.is_relative_to(HERE)]
        config.hook.pytest_deselected(items=here)
        items[:] = [item for item in items if item not in here]


@pytest.fixture(scope="module")
def browser():
    """Of one file, because while it is open no other test of the process can have a loop."""
    with launched() as found:
        yield found


@pytest.fixture
def opened(browser):
    """Opens links; whatever page was opened asked nobody else and complained of nothing."""
    with opening(browser) as open_:
        yield open_


@pytest.fixture(scope="module")
def opened_once(browser):
    """The same for pages that all tests of a file look at."""
    with opening(browser) as open_:
        yield open_


@contextmanager
def opening(browser):
    contexts, pages = [], []

    def open_(link, place="", **given):
        context = browser.new_context(**{"viewport": WINDOW, "reduced_motion": "reduce"} | given)
        contexts.append(context)
        pages.append(Shown(context, link, place=place))
        return pages[-1]

    yield open_
    for context in contexts:
        context.close()
    assert [] == [one for page in pages for one in page.strangers]
    assert [] == [one for page in pages for one in page.complaints]
