"""A cell process: the engine that serves a network and the trainer that changes it.

    python -m gyre.cell.main PLAN.json

It prints `ready URL` once it takes orders, and runs until SIGINT or SIGTERM.
"""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.parse import parse_qsl

import torch
import uvloop

from gyre.aio import run_loop
from gyre.cell.api import CellApi, CellApplication
from gyre.cell.checkpoint import planned_network, read_state
from gyre.cell.ranks.multi_rank_worker import open_ranked
from gyre.cell.spec import CellSpec
from gyre.cell.training_worker import SingleRankWorker, TrainingWorker
from gyre.cluster import fork_server
from gyre.cluster.node_agent import interface_of
from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.inference.engine.engine import EngineCore
from gyre.inference.engine.kv_cache import carried_bytes, free_bytes, kv_bytes_per_token
from gyre.inference.engine.open import device_of, dtype_of
from gyre.inference.external.process import ServerKind, ServerSettings
from gyre.inference.external.registry import KINDS, ServerLaunch, open_served, private_folder
from gyre.inference.kv_transfer import (
    CudaIpcKvStore,
    KvStore,
    SharedFolderKvStore,
    TransportKvStore,
)
from gyre.inference.server.control_api import ControllableEngine
from gyre.inference.server.main import TokenizerFile, end_ids
from gyre.inference.server.protocol import ServedModel
from gyre.inference.server.server import Server
from gyre.model.checkpoint_store import read_manifest, require_state_manifest
from gyre.model.cuda_ipc import CudaIpcMemory, IpcMemory
from gyre.model.network import Network
from gyre.model.registry import model_folder
from gyre.net.http_server import (
    listener,
    serve_until_told,
)
from gyre.storage.files import read_key, read_plan
from gyre.trainer.distributed.cell_comm import CellComm
from gyre.trainer.protocol import CellTrainer, TrainerFactory
from gyre.trainer.trainer import Trainer
from gyre.transports.registry import open_transport
from gyre.types.errors import (
    ConfigError,
    GyreError,
    ModelError,
    TransferError,
)
from gyre.types.protocols import Transport

EMBEDDED = "embedded"
SERVERS: dict[str, ServerKind] = {kind: kind for kind in KINDS}


def load_factory(factory: str) -> tuple[Callable[..., Any], Mapping[str, str]]:
    """The function that "MODULE:FUNCTION?key=value" names, and its options."""
    place, _, query = factory.partition("?")
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"{factory}: expected MODULE:FUNCTION that can be imported: {error}"
        raise ConfigError(message) from error
    return found, dict(parse_qsl(query, keep_blank_values=True))


async def open_engine(
    plan: CellSpec, network: Network, tokenizer: TokenizerFile | None
) -> ControllableEngine:
    if plan.serves_with in SERVERS:
        opening = _opening(plan, network)
        with ExitStack() as undo:
            # A server that never began leaves its folder, with its settings.
            undo.callback(rmtree, opening.wanted.folder, ignore_errors=True)
            served = await open_served(opening, network)
            undo.pop_all()
            return served
    if plan.serves_with != EMBEDDED:
        make, options = load_factory(plan.serves_with)
        folder = model_folder(plan.source)
        found: ControllableEngine = make(
            network, name=plan.name, section=plan.engine, folder=folder, options=options
        )
        return found
    loop = EngineCore(
        network,
        plan.engine,
        model=plan.model,
        version=plan.version,
        seed=plan.seed,
        decode=None if tokenizer is None else tokenizer.whole,
    )
    return EmbeddedEngine(plan.name, loop)


def _opening(plan: CellSpec, network: Network) -> ServerLaunch:
    """The server that the plan names, on the plan's device."""
    wanted = ServerSettings(
        model=model_folder(plan.source),
        version=plan.version,
        dtype=str(network.dtype).removeprefix("torch."),
        device=str(device_of(plan.device)),
        seed=plan.seed,
        kv_token_bytes=kv_bytes_per_token(network.shape, network.dtype),
        engine=plan.engine,
        server=plan.server,
        folder=private_folder(),
        python=sys.executable,
    )
    return ServerLaunch(name=plan.name, kind=SERVERS[plan.serves_with], wanted=wanted)


def open_network(plan: CellSpec) -> Network:
    """What engine and trainer have in common, or else what the engine's weights are checked by."""
    is_shared = plan.serves_with not in SERVERS or (plan.trains and not plan.has_own_weights)
    if is_shared:
        return planned_network(plan)
    # The server has the device, and the trainer has weights of its own.
    dtype = str(dtype_of(plan.dtype, device_of(plan.device))).removeprefix("torch.")
    return planned_network(replace(plan, device="cpu", dtype=dtype))


def open_trainer(plan: CellSpec, network: Network) -> CellTrainer:
    make: Callable[..., CellTrainer] = Trainer
    if plan.trainer_factory is not None:
        named: TrainerFactory
        named, options = load_factory(plan.trainer_factory)
        make = partial(named, options=options)
    trainer = make(
        network,
        section=plan.trainer,
        objective=plan.objective,
        optimizer=plan.optimizer,
        temperature=plan.temperature,
    )
    trainer.version = plan.version
    if plan.checkpoint is not None and plan.optimizer is not None:
        trainer.load(read_state(plan.checkpoint, 0, stages=1, shards=1), version=plan.version)
    return trainer


def open_learning(plan: CellSpec, network: Network, transport: Transport) -> TrainingWorker | None:
    """The training half: on the engine's own network, or on ranks that have theirs."""
    if not plan.trains:
        return None
    if plan.has_own_weights:
        if plan.trainer_factory is not None:
            kind = plan.trainer.kind
            message = f"cells.trainer: expected none for cells of {plan.ranks} ranks of {kind}"
            raise ConfigError(message)
        ranked = open_ranked(plan, network)
        # As at a SIGTERM: calls in flight end with the tokens they have.
        ranked.lost.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))
        return ranked
    memory = open_memory(plan, network)
    between = CellComm(plan.store, cell=plan.cell, timeout_s=plan.timeout_s, memory=memory)
    trainer = open_trainer(plan, network)
    trainer.offload()
    return SingleRankWorker(trainer, between, transport=transport, cell=plan.cell, memory=memory)


def open_memory(plan: CellSpec, network: Network) -> IpcMemory | None:
    """What cells lend each other of their devices, where the plan says that they do."""
    if plan.transport.kind != "cuda":
        return None
    if network.device.type != "cuda":
        found = f"found {network.device}"
        message = f'transport.kind: "cuda" is for cells whose network is on a CUDA device, {found}'
        raise ConfigError(message)
    return require_ipc(CudaIpcMemory(network.device, plan.share), network.device)


def require_ipc(memory: IpcMemory, device: torch.device) -> IpcMemory:
    """The same; ConfigError where the device's memory, as torch takes it here, cannot be lent."""
    try:
        memory.lend([torch.zeros(1, device=device)]).end()
    except TransferError as error:
        message = f'transport.kind: "cuda" cannot lend memory of {device}: {error}; '
        wanted = "expected PYTORCH_CUDA_ALLOC_CONF without expandable_segments and cudaMallocAsync"
        raise ConfigError(message + wanted) from error
    return memory


def open_shelf(plan: CellSpec, network: Network, transport: Transport, *, kv_bytes: int) -> KvStore:
    """Where engines lay cached blocks for each other."""
    match plan.transport.kind:
        case "cuda":
            memory = open_memory(plan, network)
            assert memory is not None
            free = partial(free_bytes, network.device)
            return CudaIpcKvStore(memory, network.device, kv_bytes=kv_bytes, free_bytes=free)
        case "shared":
            # Files of one machine go straight to the device, without copies on the way.
            return SharedFolderKvStore(plan.share, network.device)
        case _:
            return TransportKvStore(transport, kv_bytes=kv_bytes)


def with_checkpoint_version(plan: CellSpec) -> CellSpec:
    """The plan with the version of what it begins with; ModelError if that is no checkpoint."""
    if plan.checkpoint is None:
        return plan
    manifest = read_manifest(plan.checkpoint)
    if manifest is None:
        message = f"{plan.checkpoint}: expected a checkpoint, found no manifest"
        raise ModelError(message)
    if plan.optimizer is not None:
        found = require_state_manifest(plan.checkpoint).version
        if found != manifest.version:
            message = f"{plan.checkpoint}: expected the optimizer's state of version "
            raise ModelError(f"{message}{manifest.version}, found that of {found}")
    return replace(plan, version=manifest.version)


async def serve(plan: CellSpec, on_start: Callable[[str], None]) -> None:
    """Runs until SIGINT or SIGTERM; raises what a cell of several ranks was lost by."""
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    key = read_key(plan.key_file)
    assert key is not None
    plan = with_checkpoint_version(plan)
    network = open_network(plan)
    folder = model_folder(plan.source)
    path = folder / "tokenizer.json"
    tokenizer = TokenizerFile(path) if path.is_file() else None
    # First, because its ConfigErrors come at once, and a server takes minutes to start.
    transport = open_transport(plan.transport, owner=plan.name, host=plan.host, share=plan.share)
    engine = await open_engine(plan, network, tokenizer)
    learning = open_learning(plan, network, transport)
    capacity = await engine.capacity()
    num_tokens = capacity.blocks * capacity.block_tokens
    kv_bytes = carried_bytes(network.shape, num_tokens)
    kv_store = open_shelf(plan, network, transport, kv_bytes=kv_bytes)
    orders = CellApi(engine, network, learning, transport, kv_store=kv_store)
    server = Server(
        engine,
        ServedModel(
            model=plan.model,
            name=plan.name,
            context_tokens=capacity.context_tokens,
            tokenizer=tokenizer,
            end_ids=tuple(sorted(set(end_ids(folder, tokenizer)))),
        ),
        limits=plan.limits,
        kv_bytes=kv_bytes,
        key=key,
        kv_store=kv_store,
    )
    on = listener(plan.host, plan.port)
    port = on.getsockname()[1]
    try:
        await serve_until_told(
            CellApplication(server, orders, key),
            on,
            on_start=lambda: on_start(f"http://{plan.host}:{port}"),
            stopping=server.stop,
        )
    finally:
        on.close()
        failure = None if learning is None else learning.failure
        orders.close()
        await engine.close()
        kv_store.close()
        transport.close()
    if failure is not None:
        raise failure


def live(arguments: Sequence[str], ready: Callable[[str], None]) -> int:
    """The process's whole life; `ready` is called with the address of its API."""
    if len(arguments) != 1:
        sys.stderr.write("gyre cell: expected one argument, the file with its plan\n")
        return 2
    try:
        plan = read_plan(Path(arguments[0]), CellSpec)
        # Else process groups listen where the name of this machine leads, without asking for a key.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(plan.host))
        run_loop(serve(plan, ready), loop_factory=uvloop.new_event_loop)
    except GyreError as error:
        sys.stderr.write(f"gyre cell: {type(error).__name__}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def run_forked(arguments: Sequence[str], secret: str) -> int:
    """The same in a process that a fork server forked."""
    return live(arguments, fork_server.ready)


def main(arguments: Sequence[str]) -> int:
    return live(arguments, lambda url: print(f"ready {url}", flush=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
