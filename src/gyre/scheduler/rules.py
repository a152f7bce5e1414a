"""Every inequality that decides something, one named function each.

Rule 1: they take numbers and return a number or a claim, so that each can be read beside its
equation and tried with one that is wrong.
"""

from gyre.scheduler.cells import CellState


def executions_to_launch(*, queued: int, capacity: int, occupied: int) -> int:
    """What fills the free slots, and not more (eq:rollout-launch)."""
    return max(0, min(queued, capacity - occupied))


def may_enter_training(*, waterlevel: int, capacity: int, leaving: int) -> bool:
    """The capacity that remains without the cells that leave covers all that is outstanding
    (eq:cell-admission)."""
    return waterlevel <= capacity - leaving


def may_stay(*, ready: int, needed: int, waterlevel: int, dispatching: int, capacity: int) -> bool:
    """The core has a next batch to begin and is not missed in rollout (eq:core-retention)."""
    return ready >= needed and waterlevel + dispatching <= capacity


def supply(*, ready: int, needed: int) -> int:
    """Ready unassigned groups, as far as the batch has use for them (sec:burst-dispatch)."""
    return min(ready, needed)


def has_dwelt(*, since: float | None, dwell_s: float, now: float) -> bool:
    """Supply has held for tau without interruption (sec:burst-dispatch)."""
    return since is not None and now >= since + dwell_s


def ends_burst(*, version: int, steps_per_burst: int) -> bool:
    """The update that led to this version was the last of its burst."""
    return version % steps_per_burst == 0


def goes_home(state: CellState) -> bool:
    """A satellite in training at the end of a burst, or still on its way there (SPEC 2.2)."""
    return state in (CellState.TRAINING, CellState.ENTERING)


def groups_to_admit(*, wanted: int, outstanding: int, groups_left: int | None) -> int:
    """What the dispatch asks for, as far as the steps that are left need it (SPEC 1.6)."""
    if groups_left is None:
        return wanted
    return max(0, min(wanted, groups_left - outstanding))


def may_start_evaluation(*, waterlevel: int, capacity: int, cells_away: int) -> bool:
    """While cells are away an evaluation must not lift the waterlevel above what is left."""
    return cells_away == 0 or waterlevel + 1 <= capacity


def is_void(*, counted: int, min_valid: int) -> bool:
    """A group has too few rewards to compare (SPEC 6.5)."""
    return counted < min_valid


def too_many_void(*, void: int, window: int, max_void: float) -> bool:
    """Of the last groups to close, too large a part was void (SPEC 6.5)."""
    return void > max_void * window
