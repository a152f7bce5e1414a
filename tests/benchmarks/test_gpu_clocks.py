"""A run's sample says how fast the GPU could compute, where there is a driver to ask."""

import pytest
from benchmarks.gpu.live import clocks
from benchmarks.gpu.live.clocks import watched
from tests.waiting import PATIENCE_S, wait_until

ANSWERS = """#!/bin/sh
echo asked >> "$(dirname "$0")/asked"
{said}
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A program of the driver's name that says what it is told to, first for first."""

    def made(said):
        program = tmp_path / clocks.PROGRAM
        program.write_text(ANSWERS.format(said=said))
        program.chmod(0o755)
        return tmp_path / "asked"

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(clocks, "LOOK_S", 0.01)
    monkeypatch.setattr(clocks, "ANSWER_S", PATIENCE_S)
    return made


def waited_for(asked, times):
    wait_until(lambda: asked.exists() and len(asked.read_text().splitlines()) >= times)


def test_the_clock_is_looked_at_while_a_run_goes_on(driver):
    """Not before it begins, when the GPU rests."""
    asked = driver(
        'case $(wc -l < "$(dirname "$0")/asked") in 1) echo "345, 30, 80, 0";; '
        '2) echo "1200, 70, 500.5, 90";; *) echo "1980, 55, 400.5, 100";; esac'
    )
    with watched() as found:
        waited_for(asked, 5)

    assert {"gpu least clock_mhz": 1200.0, "gpu most celsius": 70.0} == {
        name: found[name] for name in ("gpu least clock_mhz", "gpu most celsius")
    }
    assert 1980.0 == found["gpu clock_mhz"]
    assert 400.5 < found["gpu mean watts"] < 500.5


@pytest.mark.parametrize("said", ["echo N/A, 55, 400, 90", "exit 3", "true", "echo 345, 30, 80, 0"])
def test_a_driver_that_says_nothing_of_use_costs_no_run(driver, said):
    asked = driver(said)
    with watched() as found:
        waited_for(asked, 2)

    assert {} == found


def test_without_a_driver_nothing_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with watched() as found:
        pass

    assert {} == found
