"""Puts a sandbox together by system calls and runs a program in it; needs no other module.

    python -I -S launcher.py --args DESCRIPTOR -- PROGRAM [ARGUMENT]...

It obeys those arguments of bubblewrap that `view` makes, and says the same on the same descriptors.
Rule 1: this process stays outside; its child is the first of the sandbox, and has the program.
Rule 2: sources are found before the root changes, and nothing is imported afterwards.
"""

# Paths are texts here, because importing pathlib takes longer than all that is done.
# ruff: noqa: PTH101, PTH102, PTH103, PTH110, PTH116, PTH118, PTH120, PTH123, PTH211

import ctypes
import errno
import fcntl
import os
import signal
import stat
import struct
import sys

NEW, OLD = "/newroot", "/oldroot"
BASE = "/tmp"
"""A folder that every machine has, to put the two above on while the old root is left."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
BACK = 128
NUM_WORDS = {
    "--bind": 2, "--bind-try": 2, "--block-fd": 1, "--chdir": 1, "--dev": 1, "--dev-bind": 2,
    "--die-with-parent": 0, "--dir": 1, "--disable-userns": 0, "--file": 2, "--gid": 1,
    "--hostname": 1, "--json-status-fd": 1, "--new-session": 0, "--overlay": 3, "--overlay-src": 1,
    "--perms": 1, "--proc": 1, "--remount-ro": 1, "--ro-bind": 2, "--ro-bind-try": 2,
    "--seccomp": 1, "--setenv": 2, "--size": 1, "--symlink": 2, "--tmpfs": 1, "--uid": 1,
    "--unsetenv": 1, "--unshare-cgroup-try": 0, "--unshare-ipc": 0, "--unshare-net": 0,
    "--unshare-pid": 0, "--unshare-user": 0, "--unshare-uts": 0,
}  # fmt: skip
"""How many words follow each argument."""
FLAGS = ("--json-status-fd", "--block-fd", "--seccomp", "--uid", "--gid", "--hostname", "--chdir")

_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_BIND, _REC, _PRIVATE, _SLAVE = 0x1000, 0x4000, 0x40000, 0x80000
_DETACH = 2
_NEW_USER, _NEW_CGROUP = 0x10000000, 0x02000000
_NEW_OTHERS = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Mounts, names, what processes share, processes, network."""
_MOUNT_SETATTR, _CLOSE_RANGE = 442, 436
_PIVOT_ROOT = 155 if os.uname().machine == "x86_64" else 41
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PDEATHSIG, _DUMPABLE, _SECCOMP, _BOUND_DROP, _NO_NEW_PRIVS, _AMBIENT = 1, 4, 22, 24, 38, 47
_UP = 0x1
_SET_INTERFACE = 0x8914
_CAPABILITIES = 0x20080522
"""Version of the structure that holds them."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class LauncherPlan:
    """What was asked for: settings by name, and what is put where, in order."""

    def __init__(self, words: list[str]) -> None:
        self.settings: dict[str, str] = {}
        self.variables = dict(os.environ)
        self.steps: list[tuple[str, list[str], dict[str, str]]] = []
        below: list[str] = []
        about: dict[str, str] = {}
        while words:
            name, words = words[0], words[1:]
            given, words = words[: NUM_WORDS[name]], words[NUM_WORDS[name] :]
            if name in ("--perms", "--size"):
                about[name] = given[0]
            elif name in FLAGS:
                self.settings[name] = given[0]
            elif name == "--setenv":
                self.variables[given[0]] = given[1]
            elif name == "--unsetenv":
                self.variables.pop(given[0], None)
            elif name == "--overlay-src":
                below.insert(0, os.path.realpath(given[0]))
            elif name == "--overlay":
                folders = [os.path.realpath(path) for path in given[:2]]
                self.steps.append((name, [*folders, given[2], *below], {}))
                below = []
            elif given:
                if "bind" in name:
                    given[0] = os.path.realpath(given[0])
                self.steps.append((name, given, about))
                about = {}

    def number(self, name: str) -> int:
        return int(self.settings[name])


def main(words: list[str]) -> int:
    """The status of the program, or what a shell says of one that a signal ended."""
    at = words.index("--")
    argv = words[at + 1 :]
    plan = LauncherPlan(_read(int(words[words.index("--args") + 1])).decode().split("\0"))
    uid, gid = os.geteuid(), os.getegid()
    began, begins = os.pipe()
    _call("unshare", _NEW_USER | _NEW_OTHERS)
    if os.path.exists("/proc/self/ns/cgroup"):
        _call("unshare", _NEW_CGROUP)
    # Taken along, because inside it cannot be written.
    proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
    # Terminals can only be made where somebody is root.
    _become(0, 0, of=(uid, gid), proc=proc)
    _die_with_parent()
    child = os.fork()
    if child == 0:
        os.close(began)
        os._exit(_inside(plan, argv, begins, proc))
    for descriptor in (begins, proc):
        os.close(descriptor)
    tell = plan.number("--json-status-fd")
    os.write(tell, b'{ "child-pid": %d }\n' % child)
    has_begun = _read(began) == b"+"
    if has_begun:
        os.write(tell, b'{ "has-begun": 1 }\n')
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = status if status >= 0 else BACK - status
    if has_begun:
        os.write(tell, b'{ "exit-code": %d }\n' % code)
    return code


def _inside(plan: LauncherPlan, argv: list[str], begins: int, proc: int) -> int:
    """The life of the first process of the sandbox."""
    try:
        hold = plan.number("--block-fd")
        _build(plan)
        _surrender(plan, proc)
        if os.read(hold, 1) == b"":
            return 1
        # From here on programs look at this process, whose file belongs to the machine.
        _call("prctl", _DUMPABLE, 0, 0, 0, 0)
        program = os.fork()
        if program == 0:
            _run(plan, argv, begins)
        _close_all()
    except OSError as error:
        os.write(2, f"launcher: {error}\n".encode())
        return 1
    while True:
        pid, status = os.wait()
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else BACK - code


def _run(plan: LauncherPlan, argv: list[str], begins: int) -> None:
    """This process becomes the program, or says why it cannot."""
    try:
        os.set_inheritable(begins, False)
        if begins != 3:
            os.dup2(begins, 3, inheritable=False)
        _call("syscall", _CLOSE_RANGE, 4, 2**31 - 1, 0)
        os.chdir(plan.settings["--chdir"])
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.write(3, b"+")
        _become_program(argv, plan.variables)
    except OSError as error:
        os.write(3, b"-")
        os.write(2, f"launcher: execvp {argv[0]}: {error.strerror}\n".encode())
    os._exit(1)


def _become_program(argv: list[str], variables: dict[str, str]) -> None:
    """Found on the path as a shell finds it; the library's own search imports modules."""
    folders = variables["PATH"].split(":") if "/" not in argv[0] else [""]
    failed: OSError = FileNotFoundError(2, os.strerror(2))
    for folder in folders:
        path = os.path.join(folder, argv[0])
        try:
            os.execve(path, argv, variables)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failed = error
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", ["sh", path, *argv[1:]], variables)
    raise failed


def _build(plan: LauncherPlan) -> None:
    """Everything is in its place, and this process stands in the new root."""
    _die_with_parent()
    os.setsid()
    umask = os.umask(0o022)
    _raise_loopback()
    name = plan.settings["--hostname"].encode()
    _call("sethostname", name, len(name))
    _mount(None, "/", flags=_SLAVE | _REC)
    _mount("tmpfs", BASE, "tmpfs", _NOSUID | _NODEV)
    for folder in (NEW, OLD):
        os.mkdir(BASE + folder, 0o755)
    _mount(BASE + NEW, BASE + NEW, flags=_BIND | _REC)
    _pivot(BASE, BASE + OLD)
    os.chdir("/")
    for step, words, about in plan.steps:
        _put(step, words, about)
    _mount(None, OLD, flags=_PRIVATE | _REC)
    _call("umount2", OLD.encode(), _DETACH)
    os.chdir(NEW)
    _pivot(".", ".")
    _call("umount2", b".", _DETACH)
    os.chdir("/")
    os.umask(umask)


def _put(step: str, words: list[str], about: dict[str, str]) -> None:
    if step == "--overlay":
        _stack(*words)
        return
    to = NEW + words[-1]
    if step in ("--bind", "--bind-try", "--ro-bind", "--ro-bind-try", "--dev-bind"):
        if step.endswith("-try") and not os.path.lexists(OLD + words[0]):
            return
        flags = (_RDONLY if "ro-" in step else 0) | (0 if step == "--dev-bind" else _NODEV)
        _bind(OLD + words[0], to, flags)
    elif step == "--tmpfs":
        os.makedirs(to, exist_ok=True)
        options = f"mode={about.get('--perms', '0755')}"
        size = f",size={about['--size']}" if "--size" in about else ""
        _mount("tmpfs", to, "tmpfs", _NOSUID | _NODEV, options + size)
    elif step == "--proc":
        os.makedirs(to, exist_ok=True)
        _mount("proc", to, "proc", _NOSUID | _NODEV | _NOEXEC)
        # One is what this sandbox itself needs; its programs get none.
        with open(f"{to}/sys/user/max_user_namespaces", "w") as setting:
            setting.write("1")
    elif step == "--dev":
        _make_devices(to)
    elif step == "--dir":
        os.makedirs(to, exist_ok=True)
    elif step == "--symlink":
        os.makedirs(os.path.dirname(to), exist_ok=True)
        os.symlink(words[0], to)
    elif step == "--file":
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, "wb") as file:
            file.write(_read(int(words[0])))
        os.chmod(to, int(about["--perms"], 8))
    else:
        assert step == "--remount-ro", step
        _set(to, _RDONLY)


def _bind(source: str, to: str, flags: int) -> None:
    """What is there is also here, with nobody else's rights."""
    if stat.S_ISDIR(os.stat(source).st_mode):
        os.makedirs(to, exist_ok=True)
    elif not os.path.lexists(to):
        os.makedirs(os.path.dirname(to), exist_ok=True)
        os.close(os.open(to, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(source, to, flags=_BIND | _REC)
    _set(to, flags | _NOSUID, _AT_RECURSIVE)


def _stack(upper: str, work: str, at: str, *below: str) -> None:
    os.makedirs(NEW + at, exist_ok=True)
    lower = ":".join(_escaped(OLD + path) for path in below)
    options = f"upperdir={_escaped(OLD + upper)},workdir={_escaped(OLD + work)},lowerdir={lower}"
    _mount("overlay", NEW + at, "overlay", _NOSUID | _NODEV, f"{options},userxattr")


def _escaped(path: str) -> str:
    for letter in "\\,:":
        path = path.replace(letter, f"\\{letter}")
    return path


def _make_devices(to: str) -> None:
    os.makedirs(to, exist_ok=True)
    _mount("tmpfs", to, "tmpfs", _NOSUID | _NODEV, "mode=0755")
    for name in DEVICES:
        _bind(f"{OLD}/dev/{name}", f"{to}/{name}", 0)
    for name, leads in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{leads}", f"{to}/{name}")
    os.symlink("pts/ptmx", f"{to}/ptmx")
    for name in ("shm", "pts"):
        os.mkdir(f"{to}/{name}", 0o755)
    options = "newinstance,ptmxmode=0666,mode=620"
    _mount("devpts", f"{to}/pts", "devpts", _NOSUID | _NOEXEC, options)


def _surrender(plan: LauncherPlan, proc: int) -> None:
    """This process is an ordinary user, without rights and without a way to any."""
    _call("unshare", _NEW_USER)
    _become(plan.number("--uid"), plan.number("--gid"), of=(0, 0), proc=proc)
    _call("prctl", _AMBIENT, 4, 0, 0, 0)
    for capability in range(64):
        if _libc.prctl(_BOUND_DROP, capability, 0, 0, 0) != 0:
            break
    head, none = struct.pack("=Ii", _CAPABILITIES, 0), bytes(24)
    _call("capset", head, none)
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    # Said again, because the kernel forgets it where rights change.
    _die_with_parent()
    if "--seccomp" in plan.settings:
        code = _read(plan.number("--seccomp"))
        held = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
        _call("prctl", _SECCOMP, 2, program, 0, 0)


def _become(uid: int, gid: int, *, of: tuple[int, int], proc: int) -> None:
    """This process, in a user namespace of its own, has these numbers there."""
    for name, text in {
        "setgroups": "deny",
        "uid_map": f"{uid} {of[0]} 1",
        "gid_map": f"{gid} {of[1]} 1",
    }.items():
        descriptor = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _die_with_parent() -> None:
    _call("prctl", _PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _raise_loopback() -> None:
    descriptor = _call("socket", 2, 2 | os.O_CLOEXEC, 0)
    try:
        fcntl.ioctl(descriptor, _SET_INTERFACE, struct.pack("16sh14x", b"lo", _UP))
    finally:
        os.close(descriptor)


def _close_all() -> None:
    """But what a program has, too."""
    _call("syscall", _CLOSE_RANGE, 3, 2**31 - 1, 0)


def _mount(
    source: str | None, to: str, kind: str | None = None, flags: int = 0, options: str = ""
) -> None:
    def encoded(text: str | None) -> bytes | None:
        return None if text is None else os.fsencode(text)

    what = [encoded(source), encoded(to), encoded(kind)]
    _call("mount", *what, ctypes.c_ulong(flags), encoded(options or None))


def _set(at: str, flags: int, how: int = 0) -> None:
    """Flags of mounts; their values are those of mount(2)."""
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)
    _call("syscall", _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(at), how, attributes, 32)


def _pivot(new: str, old: str) -> None:
    _call("syscall", _PIVOT_ROOT, os.fsencode(new), os.fsencode(old))


def _call(name: str, *arguments: object) -> int:
    """A function of the C library; OSError if it fails."""
    made = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    found: int = getattr(_libc, name)(*made)
    if found < 0:
        number = ctypes.get_errno()
        named = [str(one) for one in arguments if isinstance(one, bytes)]
        raise OSError(number, f"{name} {' '.join(named)}: {os.strerror(number)}")
    return found


def _read(descriptor: int) -> bytes:
    """All of it, and it is closed."""
    with open(descriptor, "rb") as file:
        return file.read()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as failed:
        sys.exit(f"launcher: {failed}")
