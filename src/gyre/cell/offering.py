"""What is published, held in the memory of one cell for the engines of others."""

from pathlib import Path
from threading import Lock

from gyre.cell.cell_weights import exposed_in_lanes, whole_cuts, withdraw
from gyre.cell.protocol import ExposedWeights
from gyre.model.weights import SafetensorsFolder
from gyre.types.ports import Transport


class CheckpointPublisher:
    """One checkpoint at a time; the one before it is withdrawn."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = Lock()
        self._folder: Path | None = None
        self._exposed: ExposedWeights | None = None

    def offered(self, folder: Path, version: int) -> ExposedWeights:
        """The weights of a checkpoint; read and verified when they are asked for first."""
        with self._lock:
            before = self._exposed
            if before is not None and (folder, version) == (self._folder, before.version):
                return before
            self._exposed = None
            if before is not None:
                withdraw(self._transport, before.parts)
            with SafetensorsFolder(folder) as stored:
                tensors = {name: stored.get(name) for name in stored.shapes}
                cuts = whole_cuts(stored.shapes)
                parts = exposed_in_lanes(self._transport, tensors, cuts, version=version)
            self._folder = folder
            self._exposed = ExposedWeights(version=version, parts=parts)
            return self._exposed
