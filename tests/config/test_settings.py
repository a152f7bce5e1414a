"""What the sections say of themselves: a sentence for every key, and what a value must be."""

import pytest
from tests.config.support.tables import sections

from gyre.config.run_config import RunInfoConfig, SamplingConfig, ScheduleConfig, SelectionConfig
from gyre.config.settings import sentence_of, setting_at, settings
from gyre.types.sampling import SamplingParams

ALL = [
    pytest.param(one, id=f"{path}.{one.name}")
    for path, section in sections()
    for one in settings(section).values()
]


@pytest.mark.parametrize("setting", ALL)
def test_every_key_has_a_sentence(setting):
    assert setting.says.endswith(".")
    assert setting.says[:1].isalpha()
    assert "None" not in setting.says


def test_every_table_has_a_sentence():
    found = {path: sentence_of(section) for path, section in sections()}

    assert {"run", "schedule", "evaluation.tasks"} <= set(found)
    assert [] == [path for path, says in found.items() if not says.endswith(".")]


def test_a_key_without_a_sentence_is_noticed():
    """The sentences come from the source, so a class that has none there has none here."""
    made = type("Bare", (RunInfoConfig,), {})

    assert {""} == {one.says for one in settings(made).values()}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("run.name", "text that is not empty"),
        ("run.seed", "a whole number of at least 0"),
        ("schedule.streaming", "true or false"),
        ("schedule.placement", 'one of "elastic", "async", "colocate"'),
        ("schedule.supply_fraction", "a number above 0 and at most 1"),
        ("optimizer.beta1", "a number of at least 0 and below 1"),
        ("cells.standalone", "a list of whole numbers of at least 1"),
        ("harness.argv", "a list of one or more texts"),
        ("harness.env", "a table of texts"),
        ("harness.args", "a list of texts"),
        ("draw.max_trajectories", 'a whole number of at least 1 or "all"'),
        ("tasks", "a table"),
        ("evaluation.tasks.kind", '"folder"'),
    ],
)
def test_what_a_value_must_be_in_words(path, expected):
    assert expected == setting_at(path.split(".")).expected


def test_keys_that_lead_nowhere_lead_to_nothing():
    assert None is setting_at(["no"])
    assert None is setting_at(["run", "no"])
    assert None is setting_at(["run", "name", "no"])


def test_sampling_has_the_defaults_of_a_request():
    section, plain = SamplingConfig(), SamplingParams()

    assert [getattr(plain, name) for name in settings(SamplingConfig)] == [
        getattr(section, name) for name in settings(SamplingConfig)
    ]


def test_values_that_follow_from_others():
    schedule = {"groups_per_batch": 4, "executions_per_group": 2, "steps_per_burst": 3}

    assert "runs/a" == RunInfoConfig(name="a").place
    assert "b" == RunInfoConfig(name="a", folder="b").place
    assert (5, None) == (SelectionConfig().limit, SelectionConfig(max_trajectories="all").limit)
    assert 0.5 == ScheduleConfig(**schedule).phi
    assert 2 == ScheduleConfig(**schedule, extra_dispatch=2).phi
    assert 0.25 == ScheduleConfig(**schedule, staleness=1.25).phi
    assert None is ScheduleConfig(**schedule, depth=2).phi
