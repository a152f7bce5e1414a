"""Roots that sandboxes stand on, which an agent may have written: no link in them leads outside."""

import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gyre.types.errors import SandboxError

MOST_LINKS = 40
"""On one path, as the kernel has it."""

Way = tuple[str, ...]
"""Names of folders from the root of a sandbox on."""


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


def clear_ways(upper: Path, left: Path, targets: Iterable[str]) -> None:
    """Folders in an empty layer where programs have left something else on the way to a target.

    `left` is the layer that they wrote. Otherwise a file or a link there would keep whoever is to
    judge them from starting. Links of an image are its own, and stay.
    """
    for target in targets:
        way = [name for name in target.split("/") if name]
        at = left
        for name in way:
            at = at / name
            try:
                mode = at.lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                break
            if not stat.S_ISDIR(mode):
                upper.joinpath(*way).mkdir(parents=True, exist_ok=True)
                break


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Something that a launcher puts into a sandbox."""

    at: str
    """Its path inside."""
    layers: tuple[Path, ...] = ()
    """What it shows of this machine, from the top down; none: what the kernel makes, or a link."""
    leads: str | None = None
    """Where to, if it is a link."""


def refuse_ways_out(puts: Iterable[Mount]) -> None:
    """SandboxError if a launcher that puts these there, in this order, would leave the sandbox.

    It makes what is missing while the machine's own root still stands beside the new one, and
    follows whatever links it meets in what it has put there before. OSError if that cannot be
    looked at.
    """
    standing = _Standing()
    for put in puts:
        standing.add(put)


class _Standing:
    """What a launcher has put together so far, each where it truly is, whatever links led there."""

    def __init__(self) -> None:
        self._puts: dict[Way, Mount] = {}

    def add(self, put: Mount) -> None:
        way = self._way(put.at)
        # It hides what stood below.
        seen = {at: one for at, one in self._puts.items() if at[: len(way)] != way}
        self._puts = seen | {way: put}

    def _way(self, target: str) -> Way:
        """To where a path leads, without links; SandboxError if one of them leads out."""
        here: Way = ()
        ahead = target.split("/")[::-1]
        num_links = 0
        while ahead:
            name = ahead.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if not here:
                    raise _leads_out(target, here)
                here = here[:-1]
                continue
            path = (*here, name)
            holder, rest = self._holder(path)
            if holder is not None and holder.leads is not None:
                ahead += holder.leads.split("/")[::-1]
                continue
            if holder is None or not holder.layers:
                # Nobody looks there, and links of the kernel's lead anywhere.
                if num_links:
                    raise _leads_out(target, path)
                here = path
                continue
            link = _link_at(holder.layers, rest) if rest else None
            if link is None:
                here = path
                continue
            num_links += 1
            if link.startswith("/") or num_links > MOST_LINKS:
                raise _leads_out(target, path)
            ahead += link.split("/")[::-1]
        return here

    def _holder(self, path: Way) -> tuple[Mount | None, Way]:
        """The innermost that a path lies in, and the rest of the path."""
        for length in range(len(path), -1, -1):
            if (found := self._puts.get(path[:length])) is not None:
                return found, path[length:]
        return None, path


def _leads_out(target: str, at: Way) -> SandboxError:
    where = "/" + "/".join(at)
    message = f"root of a sandbox: {target}: a link on the way there leads out of it, at {where}"
    return SandboxError(message, retryable=False)


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
            # Nothing else: a launcher has rights that this process may lack, and sees more.
            except (FileNotFoundError, NotADirectoryError):
                break
            if number == len(path):
                return str(at.readlink()) if stat.S_ISLNK(mode) else None
            if not stat.S_ISDIR(mode):
                return None
    return None
