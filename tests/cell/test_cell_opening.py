"""A cell that cannot be opened says why at once, and leaves nothing behind."""

import asyncio
from dataclasses import replace

import pytest
from tests.cell.support.live_cells import Started
from tests.controller.support.forked_cells import fork_clients
from tests.inference.support import slow_engine
from tests.inference.support.serving import write_model

from gyre.cell import main
from gyre.config.sections import ServerConfig, TransportConfig
from gyre.testing.emulated_cell import EmulatedTrainer
from gyre.trainer.trainer import Trainer
from gyre.types.errors import ConfigError, ModelError

cells_are_forked = fork_clients("gyre.cell.main")

NO_ADDRESS_HERE = "192.0.2.1"
"""Kept for examples: no machine has it."""


@pytest.fixture
def plan(tmp_path):
    model = tmp_path / "model"
    write_model(model, slow_engine.network())
    return Started(tmp_path, model).plan(0)


def test_a_transport_that_cannot_be_is_told_before_an_engine_is_started(plan):
    plan = replace(
        plan,
        host=NO_ADDRESS_HERE,
        transport=TransportConfig(kind="tcp"),
        serves_with="nowhere:nothing",
    )

    with pytest.raises(ConfigError, match=f"transport: cannot listen on {NO_ADDRESS_HERE}"):
        asyncio.run(main.serve(plan, print))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_never_begins_leaves_no_folder(plan, kind, monkeypatch, tmp_path):
    folder = tmp_path / "private"
    folder.mkdir()
    monkeypatch.setattr(main, "private_folder", lambda: folder)
    plan = replace(plan, serves_with=kind, server=ServerConfig(python="/no/python"))

    with pytest.raises(ConfigError, match="found no file /no/python"):
        asyncio.run(main.open_engine(plan, slow_engine.network(), None))

    assert not folder.exists()


@pytest.mark.parametrize(
    ("factory", "kind"),
    [(None, Trainer), ("gyre.testing.emulated_cell:trainer?base_s=0.5", EmulatedTrainer)],
)
def test_a_cell_has_the_trainer_that_its_run_names(plan, factory, kind):
    plan = replace(plan, trainer_factory=factory, version=4)
    network = main.open_network(plan)
    trainer = main.open_trainer(plan, network)

    assert kind is type(trainer)
    assert (network, 4, True) == (trainer.network, trainer.version, trainer.has_optimizer)
    assert not main.open_trainer(replace(plan, optimizer=None), network).has_optimizer


@pytest.mark.parametrize(
    ("factory", "changes", "said"),
    [
        ("nowhere:nothing", {}, "expected MODULE:FUNCTION that can be imported"),
        ("gyre.testing.trainers:nothing", {}, "expected MODULE:FUNCTION that can be imported"),
        ("gyre.testing.trainers:scripted?fault=lost", {}, "fault"),
        ("gyre.testing.trainers:scripted", {"stages": 2}, "expected none for cells of 2 ranks"),
    ],
)
def test_a_trainer_that_cannot_be_is_refused(plan, factory, changes, said):
    plan = replace(plan, trainer_factory=factory, **changes)
    with pytest.raises(ConfigError, match=said):
        main.open_learning(plan, slow_engine.network(), None)


def test_a_folder_without_a_model_is_refused(plan, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError):
        main.open_network(replace(plan, model=str(tmp_path / "empty")))
