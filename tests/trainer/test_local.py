"""A trainer opened from a folder."""

import pytest
import torch
from tests.trainer.cases import network
from tests.trainer.scenes import NUM_EXECUTIONS, a_scene

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.trainer.local import open_trainer
from gyre.types.errors import ModelError

SETTINGS = {
    "section": TrainerConfig(),
    "objective": LossConfig(),
    "optimizer": OptimizerConfig(),
}


def test_a_folder_becomes_a_trainer_that_trains_and_steps(tmp_path):
    network("llama").module.save_pretrained(tmp_path)
    trainer = open_trainer(tmp_path, dtype=torch.float64, version=4, **SETTINGS)
    (claim, *_) = a_scene("llama").claims()
    scores = trainer.score(claim)
    report = trainer.train(claim, num_executions=NUM_EXECUTIONS, scores=scores)

    assert scores == report.scores
    assert 5 == trainer.step().version == trainer.version


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelError):
        open_trainer(tmp_path, **SETTINGS)
