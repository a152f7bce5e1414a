"""The fault injector: at moments that the seed picks, something breaks, and some of it heals."""

import asyncio
import errno
import os
from collections import Counter
from pathlib import Path

KINDS = {
    "kill a satellite": 3,
    "kill the core": 3,
    "kill an engine": 2,
    "stop a cell": 3,
    "stop the controller": 1,
    "stop the proxy": 1,
    "kill the proxy": 3,
    "kill the controller": 4,
    "kill the controller at the journal": 3,
    "kill everything": 2,
    "kill a supervisor": 2,
    "kill an agent": 2,
    "cut a way": 3,
    "slow a place": 2,
    "lose messages": 2,
    "fill the disk": 2,
    "turn the clock": 1,
}
"""Every kind of fault, and how often it is picked beside the others."""

BACK_S = 2.0
"""How long it takes at most until somebody resumes a run whose controller died."""


class Faults:
    """What breaks, one after the other, while the run goes on."""

    def __init__(self, simulation, rng, kinds=KINDS):
        self._simulation = simulation
        self._rng = rng
        self._kinds = kinds
        self.disk = Disk(simulation)
        self.at_journal = AtJournal(simulation, rng)
        self.clock_s = 0.0
        """How far the calendar's clock is off."""
        self.hits = Counter()
        """How often each kind hit something."""

    async def work(self):
        names = sorted(self._kinds)
        weights = [self._kinds[name] for name in names]
        await self._simulation.started.wait()
        for _ in range(self._simulation.scene.faults):
            await asyncio.sleep(self._rng.expovariate(1 / self._simulation.scene.pause_s))
            (kind,) = self._rng.choices(names, weights)
            if getattr(self, "_" + kind.replace(" ", "_"))():
                self.hits[kind] += 1

    def _say(self, what):
        self._simulation.trace(f"FAULT {what}")

    def _one(self, *starts, without=()):
        """A process whose name begins with one of these."""
        running = self._simulation.machine.running
        found = sorted(one for one in running if one.startswith(starts) and one not in without)
        return running[self._rng.choice(found)] if found else None

    def _kill(self, process):
        if process is None:
            return False
        self._say(f"kill {process.name}")
        self._simulation.machine.kill(process)
        return True

    # Processes

    def _kill_a_satellite(self):
        return self._kill(self._one("cell-", without=("cell-0",)))

    def _kill_the_core(self):
        return self._kill(self._one("cell-0"))

    def _kill_an_engine(self):
        return self._kill(self._one("engine-"))

    def _kill_the_proxy(self):
        return self._kill(self._one("proxy"))

    def _stop_a_cell(self):
        return self._stop(self._one("cell-", "engine-"))

    def _stop_the_controller(self):
        return self._stop(self._one("controller"))

    def _stop_the_proxy(self):
        return self._stop(self._one("proxy"))

    def _stop(self, process):
        if process is None:
            return False
        lasts_s = self._rng.choice((0.5, 5.0, 60.0))
        self._say(f"stop {process.name} for {lasts_s:g} s")
        self._simulation.machine.stop(process, lasts_s)
        return True

    def _kill_a_supervisor(self):
        return self._harm(self._one("supervisor/"))

    def _kill_an_agent(self):
        return self._harm(self._one("agent/"))

    def _harm(self, process):
        if process is not None:
            self._simulation.watch.harmed.add(process.name.split("/")[1])
        return self._kill(process)

    def _kill_the_controller(self):
        process = self._one("controller")
        if not self._kill(process):
            return False
        self._simulation.come_back(self._rng.uniform(0.1, BACK_S))
        return True

    def _kill_the_controller_at_the_journal(self):
        """With its next commit: before, in the middle of, or after the writing."""
        if self._one("controller") is None:
            return False
        self.at_journal.arm()
        return True

    def _kill_everything(self):
        """Supervisors and agents too; their executions may end in any way."""
        if self._one("controller") is None:
            return False
        machine = self._simulation.machine
        self._say("kill everything")
        for name in sorted(machine.running):
            if name.startswith(("supervisor/", "agent/")):
                self._simulation.watch.harmed.add(name.split("/")[1])
            if name in machine.running:
                machine.kill(machine.running[name])
        self._simulation.come_back(self._rng.uniform(0.1, BACK_S))
        return True

    # Ways between them

    def _cut_a_way(self):
        pairs = (
            ("controller", "cell-"), ("controller", "engine-"), ("proxy", "cell-"),
            ("proxy", "engine-"), ("controller", "proxy"), ("controller", "supervisor/"),
            ("proxy", "agent/"),
        )  # fmt: skip
        one, other = (self._one(start) for start in self._rng.choice(pairs))
        if one is None or other is None:
            return False
        lasts_s = self._rng.choice((1.0, 6.0, 15.0))
        self._say(f"cut {one.name} from {other.name} for {lasts_s:g} s")
        self._simulation.network.cut(one.simulated, other.simulated, lasts_s)
        return True

    def _slow_a_place(self):
        process = self._one("cell-", "engine-", "proxy", "controller")
        if process is None:
            return False
        lasts_s, mean_s = self._rng.uniform(1.0, 20.0), self._rng.choice((0.05, 0.5))
        self._say(f"slow {process.name} by {mean_s:g} s for {lasts_s:.1f} s")
        self._simulation.network.slow_down(process.simulated, lasts_s, mean_s)
        return True

    def _lose_messages(self):
        share, lasts_s = self._rng.choice((0.02, 0.2)), self._rng.uniform(0.5, 5.0)
        self._say(f"lose {share:.0%} of all messages for {lasts_s:.1f} s")
        self._simulation.network.lose(share, lasts_s)
        return True

    # The machine

    def _fill_the_disk(self):
        what = self._rng.choice(("journal", "logs", "all"))
        lasts_s = self._rng.uniform(0.5, 10.0)
        self._say(f"the disk is full for {what} for {lasts_s:.1f} s")
        self.disk.fill(what, lasts_s)
        return True

    def _turn_the_clock(self):
        self.clock_s += self._rng.choice((-3600.0, 3600.0))
        self._say(f"the calendar is off by {self.clock_s:g} s")
        return True


class Disk:
    """The disk of the simulated machine, which has room for everything or not."""

    def __init__(self, simulation):
        self._simulation = simulation
        self._until = {"journal": 0.0, "logs": 0.0}
        self.num_refused = 0

    def fill(self, what, lasts_s):
        until = self._simulation.loop.time() + lasts_s
        for one in self._until if what == "all" else (what,):
            self._until[one] = max(until, self._until[one])

    def is_full_for(self, what, *, lately_s=0.0):
        """Whether it takes nothing of this kind, or did not until shortly."""
        return self._simulation.loop.time() < self._until[what] + lately_s

    def was_refused(self, text):
        """Whether it is what is said of this disk while it is full."""
        is_full = any(self.is_full_for(one, lately_s=5.0) for one in self._until)
        return is_full and "No space left" in text

    def pwrite(self, fd, data, offset):
        """Where `os.pwrite` stands."""
        if max(self._until.values()) > self._simulation.loop.time():
            path = Path(f"/proc/self/fd/{fd}").readlink()
            what = "journal" if path.name == "journal" else "logs"
            if path.is_relative_to(self._simulation.folder) and self.is_full_for(what):
                self.num_refused += 1
                raise OSError(errno.ENOSPC, "No space left on device")
        return REAL_PWRITE(fd, data, offset)


REAL_PWRITE = os.pwrite


class Killed(BaseException):
    """The process is dead; nothing of it may run any more."""


class AtJournal:
    """A controller that dies over a commit."""

    def __init__(self, simulation, rng):
        self._simulation = simulation
        self._rng = rng
        self._is_armed = False

    def arm(self):
        self._is_armed = True

    def commit(self, real):
        """What stands where `Journal.commit` does."""

        def committed(journal):
            if not (self._is_armed and journal._pending):
                return real(journal)
            self._is_armed = False
            how = self._rng.choice(("before", "torn", "after"))
            if how == "after":
                real(journal)
            elif how == "torn":
                whole = b"".join(journal._pending)
                journal._file.append_raw(whole[: self._rng.randrange(len(whole))])
            simulation = self._simulation
            simulation.trace(f"FAULT kill controller, {how} a commit")
            simulation.machine.kill(simulation.controller)
            simulation.come_back(self._rng.uniform(0.1, BACK_S))
            raise Killed

        return committed
