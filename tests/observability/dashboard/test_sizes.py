"""How large trees are."""

from gyre.observability.dashboard.tree_sizes import TreeSize, size, trees
from gyre.types.conversation import Message, ToolCall


def test_a_tree_is_measured_with_its_shared_prefix_once(make_story):
    """A preface of 10, then two calls on the same message of 5, the first of which uses a tool."""
    tool = ToolCall(id="1", name="bash", arguments="{}")
    history = make_story()
    history.call(
        1, 0, {"system": 10, "user": 5}, 4, message=Message(role="assistant", calls=(tool, tool))
    )
    history.call(2, 2, {}, 3)

    assert TreeSize(tokens=10 + 5 + 4 + 3 + 2, sampled=7, calls=2, tool_calls=2, leaves=2) == size(
        history.tree
    )


def test_sizes_are_counted_by_how_executions_ended(make_story):
    one = TreeSize(tokens=10, sampled=4, calls=2, tool_calls=0, leaves=1)
    kinds = ("completed", "timed-out")
    found = trees([(one, "completed"), (one, "timed-out")], num_closed=5, kinds=kinds)

    assert (2, 5) == (found["num_read"], found["num_closed"])
    assert {"completed": 1, "timed-out": 1} == {
        kind: sum(bins) for kind, bins in found["leaves"]["counts"].items()
    }
    assert (10, 0) == (found["tokens"]["max"], found["tool_calls"]["max"])
