"""A stage for whole flows: scripted engines and a real proxy, each a process of its own."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from gyre.testing.processes import EngineProcess, StandaloneProxy
from gyre.testing.tokenizer import write_tokenizer

Client = TypeVar("Client", bound=AbstractContextManager[Any])
SCRIPT = Path(__file__).parent / "scripts.py"


class Stage:
    """Starts processes and ends all of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.model = folder / "model"
        self.tokenizer = write_tokenizer(self.model) / "tokenizer.json"
        self._stack = stack
        self._engines = 0

    def engine(
        self, script: str = "steps", *, wire: Literal["sglang", "vllm"] = "sglang", **how: Any
    ) -> EngineProcess:
        self._engines += 1
        return self._stack.enter_context(
            EngineProcess(
                wire,
                script=f"{SCRIPT}:{script}",
                tokenizer=self.tokenizer,
                log=self.folder / f"asks-{self._engines}.jsonl",
                **how,
            )
        )

    def proxy(self, *engines: EngineProcess, options: tuple[str, ...] = ()) -> StandaloneProxy:
        return self._stack.enter_context(
            StandaloneProxy(
                self.folder / "run",
                model=self.model,
                engines=[engine.address for engine in engines],
                options=("--family", "qwen3", *options),
            )
        )

    def client(self, made: Client) -> Client:
        """A client whose sockets are closed at the end, and not whenever it is collected."""
        return self._stack.enter_context(made)


@pytest.fixture(autouse=True)
def _deterministic_products_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that is deterministic sets it for its whole process where it is not set."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


@pytest.fixture(scope="module")
def one_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """For tests that leave what they share as they found it."""
    with ExitStack() as stack:
        yield Stage(tmp_path_factory.mktemp("stage"), stack)
