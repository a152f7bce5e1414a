"""Every number that a page quotes from a result is the number the result gives."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import compare

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]*results/[^)\s]+\.json)(?:\s+\"([^\"]+)\")?\)")
SHOWN = re.compile(r"```.*?```|`[^`\n]*\]\([^`\n]*`", re.DOTALL)
"""Links inside code are examples of links."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def pages() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in ("docs", "benchmarks", "examples"):
        yield from (ROOT / folder).rglob("*.md")


def wrong(page: Path) -> Iterator[str]:
    """What a page quotes that no result says."""
    for text, target, quantity in LINK.findall(SHOWN.sub("", page.read_text())):
        path = (page.parent / target).resolve()
        if not path.is_file():
            yield f"{page.name}: {target}: no such result"
        elif quantity:
            known = compare.quantities(compare.load(path))
            if quantity not in known:
                yield f"{page.name}: {target} has no {quantity!r}; it has {sorted(known)}"
            elif not says(text, known[quantity]):
                yield f"{page.name}: {text!r} where {quantity} is {known[quantity]:.4g}"
        elif not text.startswith("`") and NUMBER.search(text):
            yield f'{page.name}: {text!r}: expected the quantity, as in ({target} "gyre cpu_ms")'


def says(text: str, value: float) -> bool:
    """Whether the first number in the text is the value, to the digits shown."""
    found = NUMBER.search(text)
    if found is None:
        return False
    shown = found[0].replace(",", "")
    decimals = len(shown.partition(".")[2])
    return abs(float(shown) - value) <= 0.5 * 10.0**-decimals * 1.0001


def test_quoted_numbers_are_those_of_the_results() -> None:
    assert [] == [fault for page in pages() for fault in wrong(page)]


def test_the_summary_in_the_readme_is_that_of_the_results() -> None:
    readme = compare.README.read_text()

    assert readme == compare.with_summary(readme, compare.load_all())


def test_every_result_is_whole() -> None:
    for path in compare.RESULTS.glob("*.json"):
        assert path == compare.load(path).path


@pytest.mark.parametrize(
    ("text", "value", "agrees"),
    [
        ("14x", 14.4, True),
        ("14x", 14.6, False),
        ("0.55 ms", 0.5549, True),
        ("0.55 ms", 0.556, False),
        ("1,234 calls", 1234.2, True),
        ("many times", 3.0, False),
    ],
)
def test_a_number_agrees_to_the_digits_it_shows(text: str, value: float, agrees: bool) -> None:
    assert agrees == says(text, value)


def test_a_number_without_a_quantity_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "some.json").write_text("{}")
    page = tmp_path / "page.md"
    page.write_text("It is [14x](results/some.json) as fast.")

    assert 1 == len(list(wrong(page)))


def test_an_example_of_a_link_is_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Write `[14x](results/none.json)`.\n```\n[2x](results/none.json)\n```\n")

    assert [] == list(wrong(page))


def test_a_result_that_does_not_exist_is_a_fault(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('It is [14x](results/none.json "litellm/gyre") as fast.')

    assert ["page.md: results/none.json: no such result"] == list(wrong(page))
