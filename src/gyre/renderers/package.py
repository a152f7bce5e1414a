"""The `renderers` package without the HTTP client that it brings along.

Its client imports `openai` and `httpx`, which take longer than all else that a proxy imports.
Nothing here calls that client, so that a module with its two errors stands in for it while the
package is imported, unless the package has been imported already.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

PACKAGE, CLIENT = "renderers", "renderers.client"
ERRORS = ("MalformedGenerateResponseError", "OverlongPromptError")
"""What the package itself takes from its client."""


@contextmanager
def _without_its_client() -> Iterator[None]:
    if PACKAGE in sys.modules:
        yield
        return
    stand_in = ModuleType(CLIENT)
    for name in ERRORS:
        setattr(stand_in, name, type(name, (Exception,), {}))
    sys.modules[CLIENT] = stand_in
    try:
        yield
    finally:
        del sys.modules[CLIENT]


with _without_its_client():
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
