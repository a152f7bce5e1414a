"""Device files that all sandboxes of this user share and none of them can change."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9),
           "tty": (5, 0)}  # fmt: skip
CACHE = Path("~/.cache/gyre/devices")
NOBODY = 65534
"""Who owns them: somebody whom no sandbox knows, so that no program can take their rights."""
MODE = 0o666 | stat.S_IFCHR


def devices(folder: Path | None = None) -> tuple[Path, ...]:
    """Made at the first call, where this process may make any; else none.

    Under root, programs own the machine's devices, and could take them from everybody; so they
    see these. They are made once, because making files takes longer than all else in a sandbox.
    """
    try:
        place = CACHE.expanduser() if folder is None else folder
        if not _are_there(place):
            _make(place)
        return tuple(place / name for name in DEVICES) if _are_there(place) else ()
    except (OSError, RuntimeError):
        # RuntimeError: there is no home.
        return ()


def _are_there(place: Path) -> bool:
    """All of them, as they must be."""
    try:
        for name, (major, minor) in DEVICES.items():
            found = (place / name).lstat()
            is_right = (MODE, NOBODY, os.makedev(major, minor)) == (
                found.st_mode,
                found.st_uid,
                found.st_rdev,
            )
            if not is_right:
                return False
        # A file system may have been told that it holds no devices.
        (place / "null").open("rb").close()
    except OSError:
        return False
    return True


def _make(place: Path) -> None:
    """Each beside its place first, because others may make or use them at this moment."""
    if os.geteuid() != 0:
        raise PermissionError
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, (major, minor) in DEVICES.items():
        fresh = place / f"{name}-{secrets.token_hex(4)}"
        try:
            os.mknod(fresh, MODE, os.makedev(major, minor))
            fresh.chmod(stat.S_IMODE(MODE))
            os.chown(fresh, NOBODY, NOBODY)
            fresh.rename(place / name)
        finally:
            with suppress(FileNotFoundError):
                fresh.unlink()
