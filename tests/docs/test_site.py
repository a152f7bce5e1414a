"""The site: every page has its place, and nothing of it comes from elsewhere."""

import re

import pytest
from tests.docs.support.pages import ROOT
from tests.docs.support.site import build

OUTSIDE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build(tmp_path_factory.mktemp("site"))


def test_it_is_built_without_a_warning_and_has_every_page(site):
    made = {one.relative_to(site).with_suffix("") for one in site.rglob("*.html")}
    written = {one.relative_to(ROOT / "docs").with_suffix("") for one in ROOT.glob("docs/**/*.md")}

    assert set() == written - made


def test_it_asks_nobody_else_for_anything(site):
    found = {one.name: OUTSIDE.findall(one.read_text()) for one in site.rglob("*.html")}

    assert {} == {name: hits for name, hits in found.items() if hits}


def test_what_pages_link_to_outside_of_the_docs_comes_along(site):
    page = (site / "configuration.html").read_text()

    assert 'href="files/examples/run.toml"' in page
    assert (ROOT / "examples/run.toml").read_bytes() == (
        site / "files/examples/run.toml"
    ).read_bytes()
    assert (site / "files/benchmarks/index.html").is_file()
