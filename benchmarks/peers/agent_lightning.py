"""Agent Lightning's LLM proxy with its default middlewares and callbacks and an in-memory store.

Runs with the peer's own packages, so it imports nothing of this project.
"""

import argparse
import asyncio
import json
import threading
from pathlib import Path

from agentlightning.llm_proxy import LLMProxy  # type: ignore[import-not-found]
from agentlightning.store.memory import InMemoryLightningStore  # type: ignore[import-not-found]


async def serve(port: int, upstream: str, routes: Path, num_routes: int) -> None:
    """The proxy serves until the process is told to end; the routes file names its rollouts.

    Thread mode with an in-process store is the cheapest of the documented arrangements: no span
    crosses a process boundary.
    """
    store = InMemoryLightningStore(thread_safe=True)
    paths = []
    for _ in range(num_routes):
        started = await store.start_rollout(input={"task": "benchmark"})
        paths.append(f"/rollout/{started.rollout_id}/attempt/{started.attempt.attempt_id}")
    parameters = {"model": "openai/policy", "api_base": f"{upstream}/v1", "api_key": "none"}
    proxy = LLMProxy(
        port=port,
        host="127.0.0.1",
        model_list=[{"model_name": "policy", "litellm_params": parameters}],
        store=store,
        launch_mode="thread",
    )
    await proxy.start()
    routes.write_text(json.dumps(paths))
    await asyncio.to_thread(threading.Event().wait)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--routes", type=Path, required=True)
    parser.add_argument("--num-routes", type=int, required=True)
    args = parser.parse_args()
    asyncio.run(serve(args.port, args.upstream, args.routes, args.num_routes))


if __name__ == "__main__":
    main()
