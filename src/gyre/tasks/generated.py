"""Tasks that a function makes, as a source or a list, named as MODULE:FUNCTION?key=value."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

from gyre.tasks.task_list import ListedTasks
from gyre.types.errors import TaskError
from gyre.types.places import TaskSource
from gyre.types.tasks import Task


def generated(source: str) -> TaskSource:
    """What the function gives for the options; TaskError if that is no source of tasks.

    FILE.py may stand for the module. The same options must give the same tasks in every process.
    """
    place, _, query = source.partition("?")
    module, _, name = place.rpartition(":")
    if not module or not name:
        raise TaskError(f"{source}: expected MODULE:FUNCTION or FILE.py:FUNCTION")
    try:
        make: Callable[..., Any] = getattr(_module(module), name)
    except (ImportError, AttributeError, OSError, SyntaxError, ValueError) as error:
        raise TaskError(f"{source}: expected a function that can be imported: {error}") from error
    try:
        found = make(**dict(parse_qsl(query, keep_blank_values=True)))
    except (TypeError, ValueError, LookupError) as error:
        raise TaskError(f"{source}: {type(error).__name__}: {error}") from error
    if isinstance(found, list | tuple):
        if not all(isinstance(task, Task) for task in found):
            raise TaskError(f"{source}: expected tasks and nothing else")
        found = ListedTasks(found, source)
    if not (hasattr(found, "get") and hasattr(found, "__len__")):
        message = f"{source}: expected a source of tasks or a list, found a {type(found).__name__}"
        raise TaskError(message)
    if len(found) == 0 or not isinstance(found.get(0), Task):
        raise TaskError(f"{source}: expected at least one task")
    checked: TaskSource = found
    return checked


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        # As with `python -m`, because an installed command looks only among what is installed.
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        return importlib.import_module(name)
    path = Path(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"{name}: no such file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses of the module look it up by its name.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
