"""Every assumption, statement and numbered equation of the analysis has its place in the code."""

import inspect
import re

import pytest
from tests.theory import theory_staleness, theory_times

from gyre.simulator import theory

STATEMENTS = [
    "thm:app-boundary-staleness",
    "cor:app-boundary-cases",
    "cor:app-async-one-step",
    "thm:app-continuous-staleness",
    "cor:app-continuous-cases",
    "cor:app-ready-estimates",
    "thm:app-continuous-step-time",
    "thm:app-boundary-step-time",
    "thm:app-matched-depths",
    "cor:app-matched-depths",
    "thm:app-time-comparisons",
    "cor:app-time-comparisons",
]

EQUATIONS = [
    "eq:app-staleness-definition",
    "eq:app-boundary-depth",
    "eq:app-mean-scheduling-age",
    "eq:app-colocated-no-extra",
    "eq:app-async-one-step",
    "eq:app-continuous-exact",
    "eq:app-colocated-continuous",
    "eq:app-equal-depth-staleness-cost",
    "eq:app-ready-rate-estimate",
    "eq:app-async-continuous",
    "eq:app-continuous-throughput",
    "eq:app-boundary-little",
    "eq:app-phase-staleness-allowance",
    "eq:app-phase-depth-relation",
    "eq:app-phase-depth-approx",
    "eq:app-phase-step-time-ratio",
    "eq:app-equal-discrete-time-ratio",
    "eq:app-phase-step-time-approx",
]

ASSUMPTIONS = ["ass:app-accounting", "ass:app-timing", "ass:app-ready-rate"]

LABEL = re.compile(r"(?:thm|cor|eq|ass):app-[a-z-]+")


def functions():
    return [
        one
        for module in (theory, theory_staleness, theory_times)
        for one in vars(module).values()
        if inspect.isfunction(one) and one.__module__ == module.__name__
    ]


@pytest.mark.parametrize("label", [*STATEMENTS, *EQUATIONS])
def test_a_function_says_that_it_is(label):
    assert [] != [one.__name__ for one in functions() if label in LABEL.findall(one.__doc__)]


def test_no_label_is_cited_that_there_is_not():
    cited = {label for one in functions() for label in LABEL.findall(one.__doc__)}

    assert set() == cited - {*STATEMENTS, *EQUATIONS, *ASSUMPTIONS}


@pytest.mark.parametrize("label", ASSUMPTIONS)
def test_a_function_or_its_module_says_what_is_assumed(label):
    assert label in f"{theory.__doc__} {theory_staleness.__doc__} {theory_times.__doc__}"
