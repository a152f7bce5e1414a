"""Stand in front of engines and record every call of the agent programs that use them."""

import argparse
from pathlib import Path

from gyre.config.sections import LimitsConfig, ProxyConfig, RouterConfig
from gyre.types.sampling import SamplingParams

ENDS = {
    0: "it was told to stop, by Ctrl-C or SIGTERM",
    2: "an argument, the model or the run folder cannot be used as it is",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    proxy = ProxyConfig()
    add = parser.add_argument
    add(
        "--engine",
        action="append",
        required=True,
        metavar="ADDRESS",
        help="http://host:port, after gyre=, sglang= or vllm= if need be; repeatable",
    )
    add("--model", required=True, help="tiny, smollm2, a folder with tokenizer.json, or that file")
    add(
        "--run",
        type=Path,
        default=Path("runs/proxy"),
        help="folder for call logs, token and address (default: %(default)s)",
    )
    add("--family", help="renderer family, where the model's name does not tell (qwen3, chatml...)")
    add(
        "--thinking",
        choices=("all", "tool_cycle", "template"),
        default="all",
        help="how much earlier thinking stays in prompts (default: %(default)s)",
    )
    add(
        "--open",
        action="append",
        default=[],
        metavar="NAME",
        help="open an execution at once and print its key; repeatable",
    )
    add(
        "--routed",
        action="store_true",
        help="a controller says which execution has which engine (PUT /gyre/routes)",
    )
    add("--host", default=proxy.host, help="where to listen (default: %(default)s)")
    add("--port", type=int, default=proxy.port, help="0 picks a free one (default: %(default)s)")
    for name, default, says in _numbers():
        add(f"--{name}", type=type(default), default=default, help=f"{says} (default: %(default)s)")
    top_k = "draw among so many of the likeliest tokens (default: among all)"
    add("--top-k", type=int, default=SamplingParams().top_k, help=top_k)
    add("--honour-sampling", action="store_true", help="use the harness's temperature and top-p")


def _numbers() -> list[tuple[str, float, str]]:
    """Options that are a number: name, default, and what it says."""
    proxy, router, limits = ProxyConfig(), RouterConfig(), LimitsConfig()
    sampling = SamplingParams()
    return [
        ("context", proxy.context_tokens, "the model's window in tokens"),
        ("max-tokens", sampling.max_tokens, "most tokens of one reply"),
        ("temperature", sampling.temperature, "how evenly tokens are drawn"),
        ("top-p", sampling.top_p, "draw among the likeliest tokens that have this share"),
        ("capacity", router.capacity, "calls at once per engine; more wait"),
        ("hold", router.hold_s, "seconds a call waits while no engine can serve it"),
        (
            "kv",
            router.kv_s,
            "seconds for a moved call's cache to follow it (gyre serve --share); 0: it stays",
        ),
        ("idle", router.idle_s, "seconds of an engine's silence before its health is asked"),
        ("ping", proxy.ping_s, "seconds between pings of a stream that waits for its reply"),
        ("body-bytes", limits.body_bytes, "largest request body"),
        ("calls-per-minute", limits.calls_per_minute, "most calls of one execution in a minute"),
        ("calls-at-once", limits.calls_per_execution, "most calls of one execution at once"),
    ]


def run(args: argparse.Namespace) -> None:
    from gyre.proxy.main import RunningProxy
    from gyre.proxy.main import run as run_proxy
    from gyre.proxy.spec import ProxySpec

    def on_start(started: RunningProxy) -> None:
        print(f"gyre proxy: {started.url}  run {started.folder}  renderer {started.renderer}")
        if started.restored:
            print(f"  {started.restored} records put back from the commit journal")
        for name, key in started.opened.items():
            print(f"  execution {name}: {started.url}/exec/{name}  key {key}")
        print("ready", flush=True)

    plan = ProxySpec(
        folder=args.run,
        model=args.model,
        engines=tuple(args.engine),
        family=args.family,
        thinking=args.thinking,
        sampling=SamplingParams(
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            max_tokens=args.max_tokens,
        ),
        proxy=ProxyConfig(
            host=args.host,
            port=args.port,
            context_tokens=args.context,
            ping_s=args.ping,
            honour_sampling=args.honour_sampling,
        ),
        router=RouterConfig(
            capacity=args.capacity, hold_s=args.hold, idle_s=args.idle, kv_s=args.kv
        ),
        limits=LimitsConfig(
            body_bytes=args.body_bytes,
            calls_per_minute=args.calls_per_minute,
            calls_per_execution=args.calls_at_once,
        ),
        open=tuple(args.open),
        routed=args.routed,
    )
    run_proxy(plan, on_start)
