"""What a pretending engine did: counted, and written down line by line where that is wanted."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from gyre.types.errors import ConfigError


@dataclass(slots=True)
class TokenCounts:
    """Tokens since the engine was made."""

    found: int = 0
    """Of prompts, found in its cache when their calls began."""
    prefilled: int = 0
    """Computed before sampling, or again after new weights."""
    sampled: int = 0
    exported: int = 0
    imported: int = 0


class TokenLedger:
    """The counts of one engine, and a file that many engines may share."""

    def __init__(self, engine: str, path: Path | None) -> None:
        """Raises ConfigError where the file cannot be written."""
        self.counts = TokenCounts()
        self._engine = engine
        self._file: int | None = None
        if path is not None:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            except OSError as error:
                raise ConfigError(f"log: {path}: {error.strerror}") from error

    def prefilled(self, ask_id: str, *, found: int, computed: int, version: int) -> None:
        self.counts.found += found
        self.counts.prefilled += computed
        self._write(event="prefill", ask=ask_id, found=found, computed=computed, version=version)

    def sampled(self, num_tokens: int) -> None:
        self.counts.sampled += num_tokens

    def exported(self, num_tokens: int, version: int) -> None:
        self.counts.exported += num_tokens
        self._write(event="export", tokens=num_tokens, version=version)

    def imported(self, num_tokens: int, version: int) -> None:
        self.counts.imported += num_tokens
        self._write(event="import", tokens=num_tokens, version=version)

    def refused(self, reason: str, version: int) -> None:
        """Blocks that were not taken in."""
        self._write(event="refuse", reason=reason, version=version)

    def loaded(self, version: int, *, keep_kv: bool) -> None:
        self._write(event="load", version=version, keep_kv=keep_kv)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, **said: str | int) -> None:
        if self._file is not None:
            line = json.dumps({"engine": self._engine, **said})
            # One write to a file opened for appending, so that lines of engines do not mix.
            os.write(self._file, line.encode() + b"\n")
