"""Cached blocks that go from engine to engine over a transport, named by their description."""

from threading import Lock

import msgspec
import numpy as np

from gyre.inference.carried import HEADER_BYTES, packed, unpacked
from gyre.inference.engine.reports import KVBlocks
from gyre.transports.cuts import TensorSlice
from gyre.transports.moving import TensorBytes, expose, fetch, read_sheet_of
from gyre.types.errors import ExposureGone, NotFound, RequestError, TransferError
from gyre.types.ports import Transport
from gyre.types.transfers import TensorBundle

BLOCKS = "blocks"
"""The one tensor of a bundle: all that an export consists of, as bytes."""
BYTES = "uint8"
SHEET_BYTES = 2**16
SHEET_PART = 2**16
"""The sheet of one tensor takes no more than this and, for its hashes, this part of its bytes."""
_BUNDLE = msgspec.json.Decoder(TensorBundle)


class TransportKvStore:
    """Blocks stay with who put them until they are dropped; others read them meanwhile."""

    def __init__(self, transport: Transport, *, kv_bytes: int) -> None:
        """More blocks than fit into these bytes no engine takes."""
        self._transport = transport
        self._most_bytes = kv_bytes + HEADER_BYTES + SHEET_BYTES + kv_bytes // SHEET_PART
        self._lock = Lock()
        self._laid: dict[str, TensorBundle] = {}

    def put(self, blocks: KVBlocks, name: str) -> tuple[str, int]:
        data = np.frombuffer(packed(blocks), np.uint8)
        part = TensorBytes(dtype=BYTES, cut=TensorSlice.all_of(data.shape), data=data)
        bundle = expose(self._transport, {BLOCKS: part}, version=blocks.version)
        found = msgspec.json.encode(bundle).decode()
        with self._lock:
            self._laid[found] = bundle
        return found, data.nbytes

    def take(self, name: str) -> KVBlocks:
        try:
            bundle = _BUNDLE.decode(name)
            if not 0 < bundle.num_bytes <= self._most_bytes:
                message = f"expected up to {self._most_bytes} bytes, found {bundle.num_bytes}"
                raise RequestError(message, where="from")
            return unpacked(self._read(bundle))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestError(f"expected what an engine put: {error}", where="from") from error
        except ExposureGone as error:
            raise NotFound(f"no cached blocks: {error}", where="from") from error
        except TransferError as error:
            raise RequestError(f"expected cached blocks: {error}", where="from") from error

    def drop(self, name: str) -> None:
        with self._lock:
            bundle = self._laid.pop(name, None)
        if bundle is not None:
            self._transport.withdraw(bundle.exposure)

    def clear(self) -> None:
        with self._lock:
            names = list(self._laid)
        for name in names:
            self.drop(name)

    def _read(self, bundle: TensorBundle) -> bytes:
        laid = read_sheet_of(self._transport, bundle).tensors.get(BLOCKS)
        if laid is None or laid.dtype != BYTES:
            raise TransferError("a bundle without blocks", retryable=False)
        whole = TensorSlice.all_of(laid.cut.whole)
        return fetch(self._transport, [bundle], {BLOCKS: (BLOCKS, whole)})[BLOCKS].data.tobytes()
