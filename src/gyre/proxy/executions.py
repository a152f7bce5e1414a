"""The executions a proxy serves: their keys, logs and sessions, before and after a restart."""

import asyncio
import hashlib
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gyre.config.sections import LimitsConfig, ProxyConfig
from gyre.proxy.session.session import Session
from gyre.storage import call_log
from gyre.storage.call_log import CallLog
from gyre.storage.files import sync
from gyre.storage.wal import WalWriter
from gyre.types.call_records import FORMAT, CallFailed, CallRecord, LogOpened, LogSealed
from gyre.types.errors import (
    ConfigError,
    LogDamaged,
    NotFound,
    Overloaded,
    Unauthorized,
    Unavailable,
    Unreadable,
)
from gyre.types.ids import ExecutionId, shard_of
from gyre.types.protocols import Renderer
from gyre.types.sampling import SamplingParams

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(slots=True)
class ProxiedExecution:
    """One open execution: its session, its log, and what it has in flight."""

    id: ExecutionId
    session: Session
    log: CallLog
    commit: WalWriter
    limits: LimitsConfig
    in_flight: int = 0
    sealed: bool = False
    in_progress: set["asyncio.Future[None]"] = field(default_factory=set)
    """One per request being answered; resolved when the execution is closed under it."""
    _tokens: float = field(default=0.0)
    _refilled_at: float = field(default=0.0)

    def write(self, *records: CallRecord) -> None:
        """Facts first into the log, then into the tree; a full disk leaves both as they were."""
        if self.sealed:
            raise _closed(self.id)
        offset = self.log.size_bytes
        data = self.log.append(*records)
        self.commit.note(self.log, self.id, offset, data)
        for record in records:
            self.session.apply(record)

    def admit(self, now: float, choices: int = 1) -> None:
        """Count a request against the limits, every choice in flight, or raise Overloaded."""
        if self.in_flight + choices > self.limits.calls_per_execution:
            most = self.limits.calls_per_execution
            message = f"{self.in_flight} calls of this execution are in flight, of {most} allowed"
            raise Overloaded(message, retry_after_s=1.0)
        rate = self.limits.calls_per_minute / 60
        if self._refilled_at == 0.0:
            self._tokens = float(self.limits.calls_per_minute)
        else:
            gained = (now - self._refilled_at) * rate
            self._tokens = min(float(self.limits.calls_per_minute), self._tokens + gained)
        self._refilled_at = now
        if self._tokens < 1:
            message = f"over {self.limits.calls_per_minute} calls a minute, the most allowed"
            raise Overloaded(message, retry_after_s=(1 - self._tokens) / rate)
        self._tokens -= 1


class ExecutionRegistry:
    """Every execution of a run folder, or of a shard, found by the hash of its key."""

    def __init__(
        self,
        folder: Path,
        renderer: Renderer,
        *,
        model: str,
        sampling: SamplingParams,
        settings: ProxyConfig,
        limits: LimitsConfig,
        commit: WalWriter,
        shard: int = 0,
    ) -> None:
        self._run = folder
        self._commit = commit
        self._shard = shard
        self._folder = folder / "executions"
        self._renderer = renderer
        self._model = model
        self._sampling = sampling
        self._settings = settings
        self._limits = limits
        self._open: dict[ExecutionId, ProxiedExecution] = {}
        self._keys: dict[bytes, ExecutionId] = {}
        self._closed: set[ExecutionId] = set()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in call_log.logs(folder):
            if self._is_mine(path.name.removesuffix(call_log.SUFFIX)):
                self._index(path)

    @property
    def loaded(self) -> list[ProxiedExecution]:
        """Executions whose trees are in memory."""
        return list(self._open.values())

    def exists(self, name: str) -> bool:
        """Whether this proxy has an execution of that name, open or closed."""
        is_name = bool(_NAME.fullmatch(name)) and self._is_mine(name)
        return is_name and self._path(ExecutionId(name)).exists()

    def create(self, name: str | None) -> tuple[ProxiedExecution, str]:
        """A new execution and its secret key, which is given once and never written."""
        execution = ExecutionId(name or self._new_name())
        if not _NAME.fullmatch(execution):
            message = f"execution id {execution!r}: expected letters, digits, '.', '_' or '-'"
            raise ConfigError(message)
        if not self._is_mine(execution):
            raise ConfigError(
                f"execution {execution} is shard {self._shard_of(execution)}'s, not this one's"
            )
        path = self._path(execution)
        if path.exists():
            raise ConfigError(f"execution {execution} exists already")
        key = "gyre-" + secrets.token_urlsafe(32)
        opened = LogOpened(
            format=FORMAT,
            execution=execution,
            key_hash=_hash(key),
            salt=secrets.token_bytes(16),
            model=self._model,
            renderer=self._renderer.name,
            at=time.time(),
        )
        log = self._new_log(path, opened)
        self._keys[opened.key_hash] = execution
        return self._admit(opened, log), key

    def of_key(self, key: str | None, claimed: str | None) -> ProxiedExecution:
        """The open execution this key belongs to; Unauthorized if none, or another's (SPEC 4.7)."""
        execution = self._keys.get(_hash(key)) if key else None
        if execution is None:
            raise Unauthorized("expected the key of an open execution")
        if claimed is not None and claimed != execution:
            raise Unauthorized(f"this key is not for execution {claimed}")
        return self.get(execution)

    def get(self, execution: ExecutionId) -> ProxiedExecution:
        """An open execution, read back from its log if this proxy has not served it yet."""
        known = self._open.get(execution)
        if known is not None:
            return known
        if execution not in self._closed and self.exists(execution):
            try:
                loaded = self._load(self._path(execution))
            except (ConfigError, LogDamaged) as error:
                raise Unreadable(str(error)) from error
            except OSError as error:
                message = f"the log of execution {execution} cannot be read: {error.strerror}"
                raise Unavailable(message) from error
            if loaded is not None:
                return loaded
        if execution in self._closed:
            raise _closed(execution)
        raise NotFound(f"no execution {execution}")

    def seal(self, execution: ExecutionId) -> int:
        """Terminate: the key stops working and the log is final; how many calls are committed.

        Of one that is terminated already the same number, for a client that missed the answer.
        """
        try:
            one = self.get(execution)
        except Unauthorized:
            return self._num_committed(execution)
        one.write(LogSealed(at=time.time()))
        one.sealed = True
        del self._open[execution]
        self._closed.add(execution)
        for request in one.in_progress:
            if not request.done():
                request.set_result(None)
        one.log.close()
        return _num_committed(one.session)

    def _num_committed(self, execution: ExecutionId) -> int:
        """Of a sealed log."""
        try:
            opened, *records = call_log.read(self._path(execution)).records
        except LogDamaged as error:
            raise Unreadable(str(error)) from error
        assert isinstance(opened, LogOpened)
        session = self._session(opened)
        for record in records:
            session.apply(record)
        return _num_committed(session)

    def close(self) -> None:
        for execution in self._open.values():
            execution.log.close()

    def _shard_of(self, name: str) -> int:
        return shard_of(name, self._settings.shards)

    def _is_mine(self, name: str) -> bool:
        """Logs of other shards are other processes' to write."""
        return self._shard_of(name) == self._shard

    def _new_name(self) -> str:
        while not self._is_mine(name := f"x{secrets.token_hex(6)}"):
            pass
        return name

    def _path(self, execution: ExecutionId) -> Path:
        return call_log.path_of(self._run, execution)

    def _new_log(self, path: Path, opened: LogOpened) -> CallLog:
        """Begun, durably; a full disk leaves none, so that it can be tried again."""
        try:
            log = CallLog(path)
            try:
                log.append(opened)
                log.sync()
                sync(self._folder)
            except OSError:
                with suppress(OSError):
                    log.close()
                raise
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return log

    def _index(self, path: Path) -> None:
        """Only the first record is read now, so that thousands of logs do not delay a restart."""
        opened = call_log.first(path)
        if opened is not None:
            self._keys[opened.key_hash] = opened.execution

    def _load(self, path: Path) -> ProxiedExecution | None:
        reading = call_log.read(path)
        if not reading.records or not isinstance(reading.records[0], LogOpened):
            raise LogDamaged(f"{path}: expected the record that opens a log, found none")
        opened = reading.records[0]
        if isinstance(reading.records[-1], LogSealed):
            self._closed.add(opened.execution)
            return None
        if opened.renderer != self._renderer.name:
            raise ConfigError(
                f"{path} was recorded with renderer {opened.renderer!r}; "
                f"this proxy renders with {self._renderer.name!r}"
            )
        one = self._admit(opened, CallLog(path, sound_bytes=reading.sound_bytes))
        try:
            for record in reading.records[1:]:
                one.session.apply(record)
            now = time.time()
            for call in list(one.session.tree.unfinished):
                one.write(CallFailed(call=call, at=now, reason="the proxy ended during the call"))
        except OSError:
            # The next request reads it again, else calls would stay without an end.
            del self._open[opened.execution]
            with suppress(OSError):
                one.log.close()
            raise
        return one

    def _session(self, opened: LogOpened) -> Session:
        session = Session(
            opened,
            self._renderer,
            sampling=self._sampling,
            context_tokens=self._settings.context_tokens,
            honour_sampling=self._settings.honour_sampling,
        )
        session.apply(opened)
        return session

    def _admit(self, opened: LogOpened, log: CallLog) -> ProxiedExecution:
        one = ProxiedExecution(
            id=opened.execution,
            session=self._session(opened),
            log=log,
            commit=self._commit,
            limits=self._limits,
        )
        self._open[opened.execution] = one
        return one


def _num_committed(session: Session) -> int:
    return sum(call.committed is not None for call in session.tree.calls.values())


def _closed(execution: ExecutionId) -> Unauthorized:
    return Unauthorized(f"execution {execution} is closed")


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
