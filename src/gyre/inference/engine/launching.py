"""Kernels of our own are refused as all work of a device is, whatever Triton calls it."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from triton.errors import TritonError

P = ParamSpec("P")
R = TypeVar("R")


def launching(act: Callable[P, R]) -> Callable[P, R]:
    """The same function; what Triton raises, which is no RuntimeError, is one."""

    @wraps(act)
    def launched(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return act(*args, **kwargs)
        except TritonError as error:
            message = f"a kernel cannot run: {type(error).__name__}: {error}"
            raise RuntimeError(message) from error

    return launched
