"""What transports have in common: keys, bounds of what is read, and errors by their words."""

import re
import secrets

from gyre.transports.sheet import MOST_BYTES
from gyre.types.errors import ExposureGone, TransferError
from gyre.types.transfers import Exposure

MOST = 2**63
"""Versions and addresses are below this."""
_KEY = re.compile(r"[0-9a-f]{32}")


def new_key() -> str:
    return secrets.token_hex(16)


def check_read(given: Exposure, at: int, num_bytes: int, *, kind: str) -> None:
    """The description is one of this transport, and the bytes wanted lie within it."""
    if given.kind != kind:
        raise refused(given, f"expected one of {kind}, found one of {given.kind}")
    if _KEY.fullmatch(given.key) is None or not 0 <= given.num_bytes <= MOST_BYTES:
        raise refused(given, f"expected a key and a size, found {given.num_bytes} bytes")
    if not (0 <= given.version < MOST and 0 <= given.at < MOST):
        raise refused(given, "expected a version and an address")
    if at < 0 or at + num_bytes > given.num_bytes:
        raise refused(given, f"expected bytes within {given.num_bytes}, found {at} + {num_bytes}")


def refused(given: Exposure, found: str) -> TransferError:
    """A description that no second attempt makes better."""
    return TransferError(f"{given.peer}: {found}", retryable=False)


def outdated(given: Exposure) -> ExposureGone:
    return ExposureGone(f"{given.peer}: version {given.version} is no longer held there")
