"""Serve a model with the engine that is built in, on the paths of SGLang and of OpenAI."""

import argparse
from pathlib import Path

from gyre.config.sections import EngineConfig, LimitsConfig, ProxyConfig

PORT = 30_000
"""Where SGLang listens, too."""

ENDS = {
    0: "it was told to stop, by Ctrl-C or SIGTERM",
    2: "an argument or the model cannot be used as it is",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    engine, limits = EngineConfig(), LimitsConfig()
    add = parser.add_argument
    add(
        "model", metavar="MODEL", help="tiny, smollm2, or a folder with config.json and safetensors"
    )
    add("--name", help="what clients call the model (default: as it is named here)")
    add("--host", default=ProxyConfig().host, help="where to listen (default: %(default)s)")
    add("--port", type=int, default=PORT, help="0 picks a free one (default: %(default)s)")
    add("--device", help="cpu, cuda or cuda:N (default: CUDA where there is one)")
    add(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="type of weights and cache (default: bfloat16 on CUDA, float32 elsewhere)",
    )
    add(
        "--capacity",
        type=int,
        default=engine.capacity,
        help="requests at once; more wait (default: %(default)s)",
    )
    add("--kv-tokens", type=int, help="tokens in the cache (default: what memory allows)")
    add(
        "--prefill-tokens",
        type=int,
        default=engine.prefill_tokens,
        help="most prompt tokens computed in one pass (default: %(default)s)",
    )
    add("--no-graphs", action="store_true", help="on CUDA, decode without captured graphs")
    add("--seed", type=int, help="of requests that bring none (default: another at every start)")
    add(
        "--share",
        type=Path,
        metavar="DIR",
        help="folder in memory through which engines of this machine hand over cached blocks",
    )
    add("--api-key-file", type=Path, metavar="FILE", help="clients must send the key in it")
    add(
        "--body-bytes",
        type=int,
        default=limits.body_bytes,
        help="largest request body (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    import gyre.inference.engine.async_engine  # noqa: F401
    from gyre.inference.server.main import RunningServer, ServerSpec
    from gyre.inference.server.main import run as run_server

    def on_start(started: RunningServer) -> None:
        print(
            f"gyre serve: {started.url}  model {args.model}  weights {started.version}  "
            f"context {started.context_tokens}  cache {started.kv_tokens} tokens  "
            f"seed {started.seed}"
        )
        print("ready", flush=True)

    plan = ServerSpec(
        model=args.model,
        name=args.name,
        host=args.host,
        port=args.port,
        device=args.device,
        dtype=args.dtype,
        seed=args.seed,
        key_file=args.api_key_file,
        engine=EngineConfig(
            capacity=args.capacity,
            kv_tokens=args.kv_tokens,
            prefill_tokens=args.prefill_tokens,
            graphs=not args.no_graphs,
        ),
        limits=LimitsConfig(body_bytes=args.body_bytes),
        share=args.share,
    )
    run_server(plan, on_start)
