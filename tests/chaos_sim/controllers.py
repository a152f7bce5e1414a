"""The controller as a simulated process: the real one, resumed as often as it takes."""

import asyncio

from tests.chaos_sim.faults import Killed

from gyre.controller.controller import Controller


class Live:
    """The controller's process."""

    def __init__(self, simulation, how):
        self._simulation = simulation
        self._how = how

    async def live(self, process):
        simulation = self._simulation
        controller = Controller(
            simulation.scene.run,
            simulation.folder / "run",
            listeners=[simulation.heard],
            decided=simulation.note_decided,
            **self._how,
        )
        try:
            reason = await controller.work()
        except BaseException as error:
            is_end = isinstance(error, asyncio.CancelledError | GeneratorExit | Killed)
            if is_end or simulation.over.done():
                raise
            if simulation.may_come_back(error):
                # Whoever asked for the run is told why, and asks again.
                simulation.come_back(5.0)
                raise
            simulation.finish(type(error).__name__)
            simulation.watch.wrong("I10", f"the run ended with {told(error)}")
            raise
        simulation.finish("told" if reason is None else reason.value)


def told(error):
    """An error and those within it, in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(told(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"


class SimBirths:
    """A nursery whose children are simulated."""

    def __init__(self, simulation, module):
        self._simulation = simulation
        self._module = module

    async def fork(self, name, arguments, *, log, secret="", outlives_parent=False):
        simulation = self._simulation
        await asyncio.sleep(simulation.machine.rng.uniform(0.001, 0.02))
        if self._module == "gyre.cell.main":
            return simulation.cells.start(name, arguments, log=log)
        return simulation.supervising.start(name, arguments, told=secret)

    def signal_log_holder(self, log, number):
        pass

    async def close(self):
        pass


class SimSocket:
    """A port that somebody listens on."""

    def __init__(self, number):
        self.number = number

    def getsockname(self):
        return "127.0.0.1", self.number

    def close(self):
        pass


def is_controllers(path):
    return path.name == "journal" or path.name.startswith("journal.")
