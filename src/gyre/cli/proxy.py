"""Stand in front of engines and record every call of the agent programs that use them."""

import argparse
from pathlib import Path

from gyre.words.samples import Sampling
from gyre.words.sections import LimitsSection, ProxySection, RouterSection


def arguments(parser: argparse.ArgumentParser) -> None:
    proxy, router, limits, sampling = (
        ProxySection(),
        RouterSection(),
        LimitsSection(),
        Sampling(),
    )
    add = parser.add_argument
    add(
        "--engine",
        action="append",
        required=True,
        metavar="ADDRESS",
        help="http://host:port, after gyre=, sglang= or vllm= if need be; repeatable",
    )
    add("--model", required=True, help="folder with the policy's tokenizer.json, or that file")
    add("--run", type=Path, default=Path("runs/proxy"), help="run folder (default: %(default)s)")
    add("--family", help="renderer family, where the model's name does not tell (qwen3, chatml...)")
    add(
        "--thinking",
        choices=("all", "tool_cycle", "template"),
        default="all",
        help="how much earlier thinking stays in prompts (default: %(default)s)",
    )
    add("--open", action="append", default=[], metavar="NAME", help="open an execution at once")
    add(
        "--routed",
        action="store_true",
        help="a controller says which execution has which engine (PUT /gyre/routes)",
    )
    add("--host", default=proxy.host, help="where to listen (default: %(default)s)")
    add("--port", type=int, default=proxy.port, help="0 picks a free one (default: %(default)s)")
    add("--context", type=int, default=proxy.context_tokens, help="the model's window in tokens")
    add("--max-tokens", type=int, default=sampling.max_tokens, help="most tokens of one reply")
    add("--temperature", type=float, default=sampling.temperature)
    add("--top-p", type=float, default=sampling.top_p)
    add("--top-k", type=int, default=sampling.top_k)
    add("--honour-sampling", action="store_true", help="use the harness's temperature and top-p")
    add("--capacity", type=int, default=router.capacity, help="calls at once per engine")
    add("--hold", type=float, default=router.hold_s, help="seconds a call waits for any engine")
    add(
        "--kv",
        type=float,
        default=router.kv_s,
        help="seconds for a moved call's cache to follow it; 0: it stays (default: %(default)s)",
    )
    add("--idle", type=float, default=router.idle_s, help="seconds of silence before a probe")
    add("--ping", type=float, default=proxy.ping_s, help="seconds between pings of a stream")
    add("--body-bytes", type=int, default=limits.body_bytes, help="largest request body")
    add("--calls-per-minute", type=int, default=limits.calls_per_minute, help="per execution")
    add("--calls-at-once", type=int, default=limits.calls_per_execution, help="per execution")


def run(args: argparse.Namespace) -> None:
    from gyre.run.proxy import ProxyPlan, Started
    from gyre.run.proxy import run as run_proxy

    def on_start(started: Started) -> None:
        print(f"gyre proxy: {started.url}  run {started.folder}  renderer {started.renderer}")
        if started.restored:
            print(f"  {started.restored} records put back from the commit journal")
        for name, key in started.opened.items():
            print(f"  execution {name}: {started.url}/exec/{name}  key {key}")
        print("ready", flush=True)

    plan = ProxyPlan(
        folder=args.run,
        model=args.model,
        engines=tuple(args.engine),
        family=args.family,
        thinking=args.thinking,
        sampling=Sampling(
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            max_tokens=args.max_tokens,
        ),
        proxy=ProxySection(
            host=args.host,
            port=args.port,
            context_tokens=args.context,
            ping_s=args.ping,
            honour_sampling=args.honour_sampling,
        ),
        router=RouterSection(
            capacity=args.capacity, hold_s=args.hold, idle_s=args.idle, kv_s=args.kv
        ),
        limits=LimitsSection(
            body_bytes=args.body_bytes,
            calls_per_minute=args.calls_per_minute,
            calls_per_execution=args.calls_at_once,
        ),
        open=tuple(args.open),
        routed=args.routed,
    )
    run_proxy(plan, on_start)
