"""Trees as boxes, for whoever draws them."""

import json

import pytest

from gyre.observability.inspect.tree_layout import SelectionRule, draws, quoted, tree_data
from gyre.trajectory.loading import load
from gyre.types.conversation import Message, ToolCall

RULE = SelectionRule(seed=0, max_trajectories=5)


@pytest.fixture
def boxed(errand, tmp_path):
    return json.loads(json.dumps(tree_data(load(errand.write(tmp_path)), RULE)))


def chains(data):
    return {tuple(box["calls"]): box for box in data["boxes"] if box["kind"] == "calls"}


def test_every_call_is_in_one_box_below_what_it_shares(boxed):
    parents = {
        tuple(box.get("calls", [])) or box["new_tokens"]: box["parent"] for box in boxed["boxes"]
    }

    assert {
        100: None,
        (1, 2): 0,
        (3,): 1,
        (4, 7): 1,
        (8,): 3,
        (9,): 3,
        (10,): 0,
        60: None,
        (5, 6): 7,
        4: None,
        (11,): 9,
    } == parents
    assert list(range(11)) == [box["id"] for box in boxed["boxes"]]


def test_every_stored_token_is_in_one_box(boxed):
    """The output of box (3,) and the input it shares with (4, 7) included."""
    own = [box["new_tokens"] + box.get("output_tokens", 0) for box in boxed["boxes"]]

    assert boxed["summary"]["unique_tokens"] == sum(own)


def test_a_box_says_why_it_forks_and_how_it_ended(boxed):
    found = chains(boxed)

    assert ("retry", "branch", "new-conversation", None) == tuple(
        found[calls]["fork"] for calls in [(4, 7), (9,), (10,), (8,)]
    )
    assert (False, "abort") == (found[3,]["is_committed"], found[3,]["finish"])
    assert (15, 20) == (found[9,]["cut"], found[9,]["output_tokens"])
    assert "Looking." == found[1, 2]["first_words"]


def test_of_what_leaves_a_box_one_goes_on_with_its_conversation(boxed):
    assert [(4, 7), (9,)] == [calls for calls, box in chains(boxed).items() if box["goes_on"]]


def test_only_summaries_are_marked_as_summaries(boxed):
    assert [(8,)] == [calls for calls, box in chains(boxed).items() if box["is_summary"]]


def test_trajectories_name_their_boxes_from_the_preface_on(boxed):
    assert [
        (1, 10, [0, 6], 21),
        (2, 9, [0, 1, 3, 5], 78),
        (3, 8, [0, 1, 3, 4], 25),
        (4, 6, [7, 8], 12),
    ] == [
        (one["place"], one["leaf"], one["boxes"], one["targets"]) for one in boxed["trajectories"]
    ]


def test_targets_of_boxes_are_those_of_the_draws(boxed):
    """The prefix of call 8 is context there: its targets were taken by the draw before."""
    found = chains(boxed)

    assert (25, [3]) == (found[8,]["targets"], found[8,]["draws"])
    assert (40, [2]) == (found[1, 2]["targets"], found[1, 2]["draws"])
    assert (0, []) == (found[11,]["targets"], found[11,]["draws"])
    assert 21 + 78 + 25 + 12 == sum(box["targets"] for box in found.values())


def test_the_draw_is_the_runs_own(errand):
    """Another limit admits other targets, and each call is admitted once."""
    one = draws(errand.tree, errand.execution, SelectionRule(seed=0, max_trajectories=1))
    every = draws(errand.tree, errand.execution, SelectionRule(seed=0, max_trajectories=None))

    assert {10: (1, 21)} == {
        call: (taken.draw, taken.num_tokens) for call, taken in one.admitted.items()
    }
    assert {1, 2, 4, 5, 6, 7, 8, 9, 10} == set(every.admitted)


def test_what_has_no_output_is_beside_the_tree(boxed):
    assert [{"call": 12, "reason": "nobody left to answer"}] == boxed["failures"]
    assert [13] == boxed["unfinished"]


def test_an_execution_without_calls_has_no_boxes(make_story, tmp_path):
    data = tree_data(load(make_story().write(tmp_path)), RULE)

    assert ([], []) == (data["boxes"], data["trajectories"])


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message(role="assistant", text=" a\n b "), "a b"),
        (Message(role="assistant", reasoning="so\nso"), "so so"),
        (
            Message(role="assistant", calls=(ToolCall(id="1", name="ls", arguments="{}"),)),
            "ls {}",
        ),
        (Message(role="assistant", text="x" * 300), "x" * 239 + "…"),
        (Message(role="assistant"), ""),
    ],
)
def test_a_reply_is_quoted_on_one_line(message, expected):
    assert expected == quoted(message)
