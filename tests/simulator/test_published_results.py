"""Published results stand in one file only."""

import re
from pathlib import Path

import gyre.simulator
from gyre.simulator import paper


def numbers(text):
    return set(re.findall(r"\d+\.\d+", text))


def strays(sources, results):
    """Published numbers outside the fitting file, by file."""
    published = {number for number in numbers(results) if len(number) >= 5}
    return {name: sorted(numbers(text) & published) for name, text in sources.items()}


def sources():
    room = Path(gyre.simulator.__file__).parent
    beside = Path(__file__).parents[2] / "benchmarks" / "sim" / "calibrate.py"
    found = {path.name: path.read_text() for path in (*sorted(room.rglob("*.py")), beside)}
    return found, found.pop(Path(paper.__file__).name)


def test_published_results_stand_in_one_file():
    found, results = sources()

    assert len(numbers(results)) > 20
    assert {} == {name: stray for name, stray in strays(found, results).items() if stray}


def test_a_published_result_elsewhere_is_found():
    found, results = sources()
    found["scenario.py"] += "\nHOURS = 16.12\n"

    assert ["16.12"] == strays(found, results)["scenario.py"]
