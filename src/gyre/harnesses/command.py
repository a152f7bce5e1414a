"""Any agent program that takes its task as an argument and its endpoint from the environment."""

import re
from collections.abc import Mapping, Sequence

from gyre.types.errors import ConfigError
from gyre.types.tasks import Command, Endpoint, Task

_PLACE = re.compile(r"\{(instruction|task|url|key)\}")


class CommandHarness:
    """A command with places to be filled in: `{instruction}`, `{task}` (its id) and `{url}`."""

    def __init__(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        *,
        home: Mapping[str, str] | None = None,
        layers: Sequence[str] = (),
    ) -> None:
        if not argv:
            raise ConfigError("harness: expected a command, found no argument")
        if any("{key}" in argument for argument in argv):
            message = "harness: the key goes into the environment, because all see arguments"
            raise ConfigError(message)
        self._argv = tuple(argv)
        self._variables = dict(variables)
        self._home = dict(home or {})
        self._layers = tuple(layers)

    def command(self, task: Task, endpoint: Endpoint) -> Command:
        """Variables and files may hold the places too, and `{key}`.

        What is filled in is not read again.
        """
        filled = {
            "instruction": task.instruction,
            "task": task.id,
            "url": endpoint.url,
            "key": endpoint.key,
        }

        def fill(text: str) -> str:
            return _PLACE.sub(lambda place: filled[place[1]], text)

        return Command(
            argv=tuple(fill(argument) for argument in self._argv),
            variables={name: fill(value) for name, value in self._variables.items()},
            home={path: fill(text) for path, text in self._home.items()},
            layers=self._layers,
        )


def environment(url: str, key: str) -> dict[str, str]:
    """Variables that point the usual agent programs at an execution."""
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_MODEL": "policy",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": key,
    }
