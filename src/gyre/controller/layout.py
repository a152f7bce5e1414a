"""Whether cells as a run file lays them out fit its model and this machine, before any starts."""

from pathlib import Path

from gyre.config.layout import Sizes, misfits, untrained, unweighable
from gyre.config.loader import LoadedConfig
from gyre.controller.run_loop import warn
from gyre.model.hf_config import read_description
from gyre.model.registry import model_folder

DEVICES = Path("/dev")


def check_layout(loaded: LoadedConfig, *, resumes: bool = False) -> None:
    """Raises ConfigError with everything that does not fit; ModelError for a model that is none.

    A run that resumes goes on with the sampling it began with, and people are told what that means.
    """
    config = loaded.config
    fields = read_description(model_folder(config.model.name)).fields
    sizes = Sizes(
        layers=fields["num_hidden_layers"],
        heads=fields["num_attention_heads"],
        kv_heads=fields["num_key_value_heads"],
        columns=fields["intermediate_size"],
        context_tokens=fields["max_position_embeddings"],
    )
    lines = [*misfits(config, sizes, devices=num_devices()), *untrained(config)]
    if resumes:
        for line in unweighable(config):
            warn(line)
    else:
        lines += unweighable(config)
    if lines:
        raise loaded.refusal(lines)


def num_devices(folder: Path = DEVICES) -> int:
    """CUDA devices of this machine; asked of the kernel, because torch is not loaded here."""
    return sum(one.name.removeprefix("nvidia").isdigit() for one in folder.glob("nvidia*"))
