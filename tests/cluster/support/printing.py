"""What a fork server of the tests forks, with a library that prints when it is imported."""

from tests.cluster.support.forked import run_forked

__all__ = ["run_forked"]
print("a library is imported", flush=True)
