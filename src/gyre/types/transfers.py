"""Where bytes lie that one process holds for others to read, in words that fit any message."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Bytes that a process holds; whoever has this can read them, for as long as they are held."""

    kind: str
    """The transport by which they are read."""
    peer: str
    """Who holds them, as that transport calls it: an address, or the name of a file."""
    key: str
    """32 hex digits that no other exposure ever had; a secret, because it lets one read."""
    version: int
    """Of what the bytes say."""
    num_bytes: int
    at: int = 0
    """Where they begin, for a transport that reads memory by its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBundle:
    """Tensors that a process holds for others: their bytes, which begin with a sheet about them."""

    exposure: Exposure
    sheet_bytes: int
    sheet_xxh3: str
    """128 bits in hex; the sheet itself has the hashes of everything else."""

    @property
    def version(self) -> int:
        return self.exposure.version

    @property
    def num_bytes(self) -> int:
        return self.exposure.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRange:
    """Bytes of a device's memory, within one of the pieces that their lender names."""

    piece: int
    at: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcHandle:
    """Device memory that processes of the same machine can read, for as long as it is lent."""

    key: str
    """32 hex digits that no other loan ever had; they stand at `stamp` until the loan ends."""
    pieces: tuple[str, ...]
    """Handles of the device's driver in hex."""
    stamp: MemoryRange
    parts: tuple[MemoryRange, ...]
    sums: tuple[int, ...]
    """Of each part, by which a copy of it is checked."""

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self.parts)
