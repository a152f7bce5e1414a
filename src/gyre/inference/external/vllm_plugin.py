"""A plug-in of vLLM that loads weights from a cell's memory; vLLM's interpreter runs it.

vLLM imports it as `gyre_vllm_weights`, from a folder beside its own, and nothing else of Gyre.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

BACKEND = "gyre"


@dataclass
class CellWeightsInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on beforehand."""


@dataclass
class CellWeightsUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A safetensors file in memory that the cell keeps until it is answered."""

    path: str
    num_bytes: int


class CellWeights(WeightTransferEngine[CellWeightsInit, CellWeightsUpdate]):  # type: ignore[misc]
    """Tensors under their names in a checkpoint, which each worker cuts as it needs them."""

    init_info_cls = CellWeightsInit
    update_info_cls = CellWeightsUpdate

    def init_transfer_engine(self, init_info: CellWeightsInit) -> None:
        return

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, update_info: CellWeightsUpdate) -> None:
        found = Path(update_info.path).stat().st_size
        if found != update_info.num_bytes:
            message = f"{update_info.path}: expected {update_info.num_bytes} bytes, found {found}"
            raise ValueError(message)
        self.model.load_weights(_tensors(update_info.path, self.device))

    def shutdown(self) -> None:
        return


def _tensors(path: str, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt", device=str(device)) as file:
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            yield name, file.get_tensor(name)


def register() -> None:
    """Called by every process of vLLM, in some more than once."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, CellWeights)
