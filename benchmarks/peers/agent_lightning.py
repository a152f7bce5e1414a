"""Agent Lightning's LLM proxy with its default middlewares and callbacks and an in-memory store."""

import argparse
import asyncio
import threading

from agentlightning.llm_proxy import LLMProxy
from agentlightning.store.memory import InMemoryLightningStore


async def serve(port: int, upstream: str) -> None:
    """The proxy serves until the process is told to end.

    Thread mode with an in-process store is the cheapest of the documented arrangements: no span
    crosses a process boundary.
    """
    parameters = {"model": "openai/policy", "api_base": f"{upstream}/v1", "api_key": "none"}
    proxy = LLMProxy(
        port=port,
        host="127.0.0.1",
        model_list=[{"model_name": "policy", "litellm_params": parameters}],
        store=InMemoryLightningStore(thread_safe=True),
        launch_mode="thread",
    )
    await proxy.start()
    await asyncio.to_thread(threading.Event().wait)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    args = parser.parse_args()
    asyncio.run(serve(args.port, args.upstream))


if __name__ == "__main__":
    main()
