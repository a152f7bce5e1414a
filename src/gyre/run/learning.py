"""The half of a cell that trains: one sum of gradients, whose claims are known by their leases.

Rule 1: a sum that does not consist of exactly the leases it should is sent nowhere (SPEC 3.2).
Rule 2: an error leaves the sum and the weights as they were.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from gyre.model.checkpoint import save
from gyre.model.manifest import Manifest
from gyre.model.weights import digest, parameters
from gyre.train.between import Between, num_bytes
from gyre.train.cell import LocalTrainer
from gyre.words.errors import CellError, ModelError
from gyre.words.packs import Claim, Score
from gyre.words.reports import ClaimReport, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Weights that lie in the shared folder, for others to take."""

    version: int
    name: str
    """Of the file."""
    digest: str
    num_bytes: int


class Learning:
    """A trainer, what its sum holds, and the ways to other cells."""

    def __init__(self, trainer: LocalTrainer, between: Between, *, share: Path, cell: int) -> None:
        self._trainer = trainer
        self._between = between
        self._share = share
        self._cell = cell
        self._held: set[int] = set()
        self._exposed: Exposed | None = None

    @property
    def version(self) -> int:
        return self._trainer.version

    def restore(self) -> None:
        """The trainer has its memory, and the network its weights, whatever an engine loaded."""
        self._trainer.restore()
        self._trainer.rewrite()

    def rest(self) -> None:
        """Its memory is free; a sum that holds anything is kept (SPEC 2.5)."""
        self._trainer.rest()

    def clear(self) -> None:
        self._trainer.clear()
        self._held.clear()

    def score(self, claim: Claim) -> tuple[Score, ...]:
        return self._trainer.score(claim)

    def train(
        self, claim: Claim, *, lease: int, num_executions: int, scores: Sequence[Score] | None
    ) -> ClaimReport:
        if lease in self._held:
            raise CellError(f"lease {lease} is in the sum already", retryable=False)
        report = self._trainer.train(claim, num_executions=num_executions, scores=scores)
        self._held.add(lease)
        return report

    def meet(self, epoch: int, order: Sequence[int]) -> None:
        self._between.meet(epoch, order)

    def reduce(
        self, epoch: int, members: Sequence[int], leases: Mapping[int, Collection[int]]
    ) -> int:
        """The first member's sum is that of all; bytes that this cell sent there."""
        mine = set(leases[self._cell])
        if mine != self._held:
            odd = sorted(mine ^ self._held)
            raise CellError(f"the sum of cell {self._cell} is not of its leases: {odd} differ")
        sums = self._trainer.gradients
        total = self._between.reduced(epoch, members, sums)
        if members[0] != self._cell:
            return num_bytes(total)
        self._trainer.replace_gradients(total)
        self._held = {lease for held in leases.values() for lease in held}
        return 0

    def step(self, version: int) -> StepReport:
        """One update from this version; said again, it is the one that was made."""
        if self._trainer.version != version:
            found = f"the trainer has version {self._trainer.version}"
            raise CellError(f"a step from version {version}: {found}", retryable=False)
        report = self._trainer.step()
        self._held.clear()
        return report

    def spread(self, epoch: int, members: Sequence[int], version: int) -> None:
        """Everybody has the first member's weights, which are of this version."""
        named = sorted(self._trainer.network.module.named_parameters())
        found = self._between.spread(epoch, members, [one for _, one in named])
        if members[0] != self._cell:
            tensors = {name: one for (name, _), one in zip(named, found, strict=True)}
            self._trainer.load_weights(tensors, version=version)
            self.clear()

    def expose(self) -> Exposed:
        """The weights as they are, in a file; they are fixed while a batch is trained (SPEC 3.1).

        Runs beside the thread that trains.
        """
        version = self._trainer.version
        if self._exposed is not None and self._exposed.version == version:
            return self._exposed
        if self._exposed is not None:
            with suppress(FileNotFoundError):
                (self._share / self._exposed.name).unlink()
        name = f"weights-{self._cell}-{version}.safetensors"
        held = dict(parameters(self._trainer.network, None))
        part = self._share / f"{name}.part"
        save_file(held, part)
        part.rename(self._share / name)
        self._exposed = Exposed(
            version=version,
            name=name,
            digest=digest(self._trainer.network),
            num_bytes=num_bytes(list(held.values())),
        )
        return self._exposed

    def pull(self, given: Exposed) -> None:
        """The weights are those of another cell, and no others (SPEC 3.1)."""
        path = self._share / Path(given.name).name
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{path}: expected weights of version {given.version}: {error}"
            ) from error
        self._trainer.load_weights(tensors, version=given.version)
        found = digest(self._trainer.network)
        if found != given.digest:
            raise ModelError(f"{path}: expected weights with digest {given.digest}, found {found}")
        self.clear()

    def save(self, folder: Path) -> tuple[Manifest, float]:
        """A checkpoint of the weights, durable, and the seconds it took."""
        began = perf_counter()
        manifest = save(self._trainer.network, folder, version=self._trainer.version)
        return manifest, perf_counter() - began

    def drop(self) -> None:
        self._between.drop()
