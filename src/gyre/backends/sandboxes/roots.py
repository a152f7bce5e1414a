"""Roots that sandboxes stand on, which an agent may have written: no link in them leads outside."""

import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gyre.words.errors import SandboxError

MOST_LINKS = 40
"""On one path, as the kernel has it."""


def below_of(roots: Sequence[Path], workdir: str) -> tuple[Path, ...]:
    """What roots hold where programs work; links that lead out of one lead to this machine."""
    found = []
    for root in roots:
        # RuntimeError: links in a circle.
        with suppress(OSError, RuntimeError):
            inside = (root / workdir.lstrip("/")).resolve()
            if inside.is_relative_to(root.resolve()) and inside.is_dir():
                found.append(inside)
    return tuple(found)


def refuse_ways_out(standing: Mapping[str, Sequence[Path]], targets: Iterable[str]) -> None:
    """SandboxError if a launcher that puts something there would leave the folders it stands in.

    It makes what is missing while the machine's own root still stands beside the new one, and
    follows whatever links it meets. `standing`: folders by their places, each as its layers from
    the top down.
    """
    for target in targets:
        place, inside = _holder(standing, target)
        if place is not None and not _stays(standing[place], inside):
            message = f"root of a sandbox: {target}: a link on the way there leads out of {place}"
            raise SandboxError(message, retryable=False)


def _holder(standing: Mapping[str, Sequence[Path]], target: str) -> tuple[str | None, str]:
    """The innermost folder that a path lies in, and the rest of the path."""
    found: tuple[str | None, str] = (None, target)
    for place in sorted(standing, key=len):
        rest = target.removeprefix(place.rstrip("/"))
        if target.startswith(place) and rest.startswith("/"):
            found = place, rest
    return found


def _stays(layers: Sequence[Path], target: str) -> bool:
    """Whether a path is inside the stack of layers wherever its links lead."""
    here: list[str] = []
    ahead = target.split("/")[::-1]
    num_links = 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if not here:
                return False
            here.pop()
            continue
        link = _link_at(layers, [*here, name])
        if link is None:
            here.append(name)
            continue
        num_links += 1
        if link.startswith("/") or num_links > MOST_LINKS:
            return False
        ahead += link.split("/")[::-1]
    return True


def _link_at(layers: Sequence[Path], path: Sequence[str]) -> str | None:
    """Where the link leads that stands there; None if it is none, or nothing is there.

    The layers above hide what lies below them, unless both are folders.
    """
    for layer in layers:
        at = layer
        for number, name in enumerate(path, start=1):
            at = at / name
            try:
                mode = at.lstat().st_mode
            except OSError:
                break
            if number == len(path):
                return str(at.readlink()) if stat.S_ISLNK(mode) else None
            if not stat.S_ISDIR(mode):
                return None
    return None
