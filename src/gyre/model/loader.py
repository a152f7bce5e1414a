"""Loads a network by name or folder, without a hub and without running code from the folder."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gyre.model.hf_config import Description, read_description
from gyre.model.network import Network
from gyre.model.registry import model_folder
from gyre.model.weights import SafetensorsFolder, fill
from gyre.types.errors import ModelError, OutOfMemory

_CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def load_network(
    model: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Network:
    """The network of `tiny`, `smollm2` or a folder; raises ModelError, before taking memory."""
    folder = model_folder(str(model))
    description = read_description(folder)
    with SafetensorsFolder(folder) as stored:
        sketch = _sketch(description)
        stored.check(sketch)
        try:
            module = _allocate(sketch, torch.device(device), dtype)
            module.name_or_path = str(folder)
            fill(module, stored)
        except (torch.OutOfMemoryError, MemoryError) as error:
            message = f"{folder}: no room on {device} for its weights"
            raise OutOfMemory(message) from error
    return Network(module)


def new_network(
    description: Description,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Network:
    """A network with random weights, the same for the same seed on one device type."""
    module = _allocate(_sketch(description), torch.device(device), dtype)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, one in module.named_parameters():
            if one.dim() > 1:
                one.normal_(0.0, module.config.initializer_range, generator=generator)
            else:
                one.fill_(0.0 if name.endswith("bias") else 1.0)
    return Network(module)


def _sketch(description: Description) -> PreTrainedModel:
    """The module with names and shapes, and no memory behind them."""
    config, module = _CLASSES[description.model_type]
    try:
        with _quiet(), torch.device("meta"):
            return module(config(**description.fields))  # type: ignore[no-any-return]
    except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
        message = f"{description.where}: expected sizes that fit together: {error}"
        raise ModelError(message) from error


def _allocate(sketch: Any, device: torch.device, dtype: torch.dtype) -> Any:
    module = sketch.to(dtype).to_empty(device=device)
    # Angles are computed, not stored, and lose their meaning in a narrow type.
    module.model.rotary_emb = type(module.model.rotary_emb)(module.config).to(device)
    module.tie_weights()
    return module.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """What transformers thinks of a configuration is said by our own checks."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
