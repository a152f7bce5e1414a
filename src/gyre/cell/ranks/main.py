"""A rank process that follows its cell's driver: commands come as lines, and it ends with them.

python -m gyre.cell.ranks.main PLAN.json RANK STORE
"""

import os
import queue
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import BinaryIO

import msgspec
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from gyre.cell.checkpoint import planned_network, read_state
from gyre.cell.protocol import refusal
from gyre.cell.ranks.protocol import BESIDE, READY, ExposeCommand, RankReply, RankRequest
from gyre.cell.ranks.worker import RankWorker
from gyre.cell.spec import CellSpec
from gyre.cell.weight_sync import cuts_of, shapes_of
from gyre.model.network import Network
from gyre.storage.files import read_plan
from gyre.trainer.distributed.cell_comm import CellComm
from gyre.trainer.distributed.rank_comm import RankComm, RankPosition
from gyre.trainer.distributed.rank_trainer import RankTrainer
from gyre.trainer.megatron.trainer import megatron_rank
from gyre.transports.registry import open_transport
from gyre.types.errors import GyreError

LAST_S = 1.0
"""How long what is under way may take after the driver has nothing more to say."""


def open_part(plan: CellSpec, rank: int, store: Path, network: Network) -> RankWorker:
    """Its place in the cell; returns when all ranks are there."""
    place = RankPosition.of(rank, stages=plan.stages, shards=plan.shards)
    lines = RankComm(
        FileStore(str(store), place.size), place, device=network.device, timeout_s=plan.timeout_s
    )
    whole = shapes_of(network.module)
    open_trainer = megatron_rank if plan.trainer.kind == "megatron" else RankTrainer
    trainer = open_trainer(
        network,
        lines,
        section=plan.trainer,
        objective=plan.objective,
        optimizer=plan.optimizer,
        temperature=plan.temperature,
        version=plan.version,
    )
    if plan.checkpoint is not None and plan.optimizer is not None:
        state = read_state(plan.checkpoint, rank, stages=plan.stages, shards=plan.shards)
        trainer.load(state, version=plan.version)
    trainer.offload(weights=True)
    between = CellComm(plan.store, cell=plan.cell, rank=rank, timeout_s=plan.timeout_s)
    host, owner = plan.host_of(rank), f"{plan.name}-{rank}"
    transport = open_transport(plan.transport, owner=owner, host=host, share=plan.share)
    cuts = cuts_of(shapes_of(network.module), whole, shard=place.shard)
    return RankWorker(
        trainer, lines, between, transport, cuts=cuts, share=plan.share, cell=plan.cell
    )


class _Follower:
    """The loop of orders; exposing goes on beside it, and so do checkpoints."""

    def __init__(self, part: RankWorker, says: "_Says") -> None:
        self._part = part
        self._says = says
        self._orders: queue.SimpleQueue[RankRequest | None] = queue.SimpleQueue()
        self._beside: queue.SimpleQueue[RankRequest | None] = queue.SimpleQueue()
        self._is_over = Event()

    def work(self) -> None:
        """Until the driver is gone; its threads are over then."""
        reader = Thread(target=self._read, name="orders", daemon=True)
        saver = Thread(target=self._obey_all, args=[self._beside], name="saver", daemon=True)
        reader.start()
        saver.start()
        self._obey_all(self._orders)
        saver.join()
        self._is_over.set()
        reader.join()

    def _obey_all(self, orders: "queue.SimpleQueue[RankRequest | None]") -> None:
        while (asked := orders.get()) is not None:
            self._obey(asked)

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            asked = msgspec.json.decode(line, type=RankRequest)
            if isinstance(asked.order, ExposeCommand):
                self._obey(asked)
            elif isinstance(asked.order, BESIDE):
                self._beside.put(asked)
            else:
                self._orders.put(asked)
        self._orders.put(None)
        self._beside.put(None)
        # The driver is gone; work that is still under way here is of no use.
        if not self._is_over.wait(LAST_S):
            os._exit(0)

    def _obey(self, asked: RankRequest) -> None:
        try:
            answer = self._part.execute(asked.order, asked.number)
        except GyreError as error:
            version = self._part.trainer.version
            answer = RankReply(number=asked.number, version=version, refusal=refusal(error))
        self._says.say(answer)


class _Says:
    """The way back to the driver."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = Lock()

    def say(self, answer: RankReply) -> None:
        # A driver that is gone needs no answer.
        with self._lock, suppress(BrokenPipeError):
            self._file.write(msgspec.json.encode(answer) + b"\n")
            self._file.flush()


def _end_with(failed: threading.ExceptHookArgs) -> None:
    """A thread that fails takes its process with it, because the driver waits for its answer."""
    traceback.print_exception(failed.exc_value)
    sys.stderr.flush()
    os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """The process's whole life."""
    if len(arguments) != 3:
        sys.stderr.write("gyre rank: expected the file with its plan, a rank and a store\n")
        return 2
    # What a library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "wb")
    says = _Says(answers)
    os.dup2(2, 1)
    threading.excepthook = _end_with
    try:
        plan = read_plan(Path(arguments[0]), CellSpec)
        if plan.threads is not None:
            torch.set_num_threads(plan.threads)
        network = planned_network(plan, int(arguments[1]))
        says.say(RankReply(number=READY, version=plan.version))
        part = open_part(plan, int(arguments[1]), Path(arguments[2]), network)
        _Follower(part, says).work()
        part.drop()
    except GyreError as error:
        sys.stderr.write(f"gyre rank: {type(error).__name__}: {error}\n")
        return 1
    finally:
        with suppress(BrokenPipeError):
            answers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
