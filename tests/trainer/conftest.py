"""What trainers in this process find as a cell's process has it."""

import pytest


@pytest.fixture(autouse=True)
def _deterministic_products_may_come(monkeypatch):
    """A trainer that is deterministic sets it for its whole process where it is not set."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
