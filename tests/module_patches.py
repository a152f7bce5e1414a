"""A module with other functions, as one module of the package sees it and no other thread does."""

from types import ModuleType


class Overridden:
    """Set in a module's place in the one that uses it: all of it, but for what is given here."""

    def __init__(self, module: ModuleType, **functions: object) -> None:
        self._module = module
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)
