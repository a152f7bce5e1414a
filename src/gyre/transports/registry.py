"""The transport that a run file asks for, loaded only then."""

import importlib
import os
from pathlib import Path

from gyre.config.sections import TransportConfig
from gyre.transports.shared_memory import SharedTransport
from gyre.transports.tcp import TcpTransport
from gyre.types.errors import ConfigError
from gyre.types.protocols import Transport


def open_transport(section: TransportConfig, *, owner: str, host: str, share: Path) -> Transport:
    """For the process of that name, which others reach by that address."""
    match section.kind:
        case "shared" | "cuda":
            # What is not on a device goes by files.
            return SharedTransport(share, owner=owner)
        case "tcp":
            try:
                return TcpTransport(host, timeout_s=section.timeout_s)
            except OSError as error:
                raise ConfigError(f"transport: cannot listen on {host}: {error}") from error
        case "mooncake":
            # Read when it is loaded; it would write of its inner life otherwise.
            os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
            module = importlib.import_module("gyre.transports.mooncake")
            found: Transport = module.MooncakeTransport(
                host, protocol=section.protocol, devices=section.devices
            )
            return found
