"""The `renderers` package without the HTTP client that it brings along.

Its client imports `openai` for the sake of two annotations, which takes longer than all else that a
proxy or a controller imports. Nothing here calls that client, so that an empty module stands in for
`openai` while the package is imported, unless it has been imported already.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def _without(name: str, type_name: str) -> Iterator[None]:
    """A module that is not there yet is one with a single type, until the end."""
    if name in sys.modules:
        yield
        return
    stand_in = ModuleType(name)
    setattr(stand_in, type_name, object)
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        del sys.modules[name]


with _without("openai", "AsyncOpenAI"):
    from renderers.base import (
        MODEL_RENDERER_MAP,
        ParsedToolCall,
        ToolCallParseStatus,
        create_renderer,
    )
    from renderers.configs import config_from_name

__all__ = [
    "MODEL_RENDERER_MAP",
    "ParsedToolCall",
    "ToolCallParseStatus",
    "config_from_name",
    "create_renderer",
]
