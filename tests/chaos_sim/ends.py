"""What a run that is over has left on the disk, read back and compared with what it did."""

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import read
from gyre.scheduler.replay import EVENTS, replay
from gyre.storage import call_log
from gyre.trajectory.tree import Tree


def check_journal(folder, shape, decided):
    """The journal through a fresh scheduler gives every order that was given (SPEC 10)."""
    facts = read(folder / "journal", kinds=JOURNAL_EVENTS).facts(EVENTS)
    again = replay(shape, facts)
    known = iter(zip(facts, again.orders, strict=True))
    for now, event, orders in decided:
        found = next((one for fact, one in known if fact == (now, event)), None)
        assert found == orders, f"{event} at {now} gave {orders}, and the journal gives {found}"
    counters, ledger = again.scheduler.counters, again.scheduler.ledger
    wanted = shape.steps * shape.groups_per_batch
    assert wanted == ledger.trained + ledger.void, f"{ledger} after {shape.steps} steps"
    assert ledger.admitted == ledger.trained + ledger.void + ledger.outstanding, f"{ledger}"
    still_open = counters.dispatched - sum(ledger.outcomes.values())
    assert 0 <= still_open <= ledger.outstanding * shape.group_size, f"{counters} {ledger}"


def check_logs(folder, answers):
    """Every reply that an agent was given is in its execution's log, and can be read."""
    for execution, many in answers.items():
        tree = Tree()
        for record in call_log.read(call_log.path_of(folder, execution)).records:
            tree.apply(record)
        kept = sum(one.committed is not None for one in tree.calls.values())
        # The last one counts as delivered when its reader says more, or has taken it all.
        assert kept >= many - 1, f"{execution} got {many} replies, and its log has {kept}"


def check_memory(folder):
    """Nothing that cells shared is left, whoever died over it."""
    left = sorted(path.name for path in folder.iterdir())
    assert left == [], f"{len(left)} shared folders are left"
