"""A mapping that notes its changes: each is told once, whatever it was."""

from gyre.controller.routes import ChangeTrackingDict


def test_what_was_set_and_what_was_removed_is_told_once():
    found = ChangeTrackingDict()
    found["a"], found["b"] = 1, 2
    del found["a"]
    found["b"] = 3

    assert ["a", "b"] == found.changed()
    assert [] == found.changed()
    assert {"b": 3} == found


def test_every_way_to_change_it_is_noted():
    found = ChangeTrackingDict()
    found.update(a=1, b=2, c=3)
    found.changed()
    found.pop("a")
    found.pop("never", None)
    found.setdefault("b", 9)
    found.setdefault("d", 4)
    found.clear()

    assert {"a", "b", "c", "d"} == set(found.changed())
    assert 0 == len(found)
