"""Trees as people see them, line for line."""

import pytest

from gyre.observability.inspect.tree_text import TreeViewOptions, lines, said
from gyre.types.conversation import Message, ToolCall

ERRAND = """\
execution x  open, incomplete
  calls   11 (10 committed), 1 failed, 1 unfinished
  roots   3
  leaves  2 main, 1 main-summary, 1 sub-agent
  tokens  777 unique, 2,061 sent to engines (2.7 times as many)
  targets 136 of 150 sampled tokens
  forks   2 new-root, 1 branch, 1 new-conversation, 1 retry
  flags   none

calls         role          agent     shared  new  sampled
root 1: a preface of 100 tokens
├─● 1-2       main                         0  162       40
│ ├─○ 3       main                       202    6        7  uncommitted, ended by abort
│ ● 4..7 (2)  main                       207    8       23  retry
│ ├─● 8       main-summary               238   14       25
│ ● 9         main                       238    4       20  branch, 15 of 20 tokens came back
└─● 10        main                       100   51       21  new-conversation
root 2: a preface of 60 tokens
└─● 5-6       sub-agent     reader-1       0  371       12  new-root
root 3: a preface of 4 tokens
└─● 11        aux                          0   11        2  new-root

call 12 failed: nobody left to answer
call 13 was opened, and its end is unknown"""

LEAVES = """\

leaves  drawn with at most 5, seed 0
  call  role          agent     tokens  targets  drawn
  6     sub-agent     reader-1     383       12      4  for 12 targets
  8     main-summary               277       88      3  for 25 targets
  9     main                       257       78      2  for 78 targets
  10    main                       172       21      1  for 21 targets"""


def drawing(history, **view):
    return lines(history.tree, execution=history.execution, view=TreeViewOptions(**view))


def test_every_kind_of_call_has_its_place(errand):
    """M21: the execution is marked incomplete."""
    assert ERRAND.splitlines() == drawing(errand)


def test_leaves_are_listed_with_what_a_draw_takes(errand):
    assert [*ERRAND.splitlines(), *LEAVES.splitlines()] == drawing(errand, leaves=True)


def test_an_execution_without_calls_is_only_a_header(make_story):
    history = make_story()
    history.seal()

    assert [
        "execution x  sealed, complete",
        "  calls   0 (0 committed)",
        "  roots   0",
        "  leaves  none",
        "  tokens  0 unique, 0 sent to engines",
        "  targets 0 of 0 sampled tokens",
        "  forks   none",
        "  flags   none",
    ] == drawing(history)


def test_an_execution_without_leaves_says_so(make_story):
    assert ["leaves  drawn with at most 5, seed 0", "  none"] == drawing(make_story(), leaves=True)[
        -2:
    ]


def test_defects_are_named_in_the_header_and_beside_the_calls(make_story):
    history = make_story()
    one = history.call(1, 0, {"system": 2}, 3, flags=("unknown-harness",))
    two = history.call(2, one, {"user": 2}, 3, flags=("unknown-harness", "no-logprobs"))
    history.call(3, two, {"user": 2}, 3, fork="edited", ambiguous=True, finish="length")
    shown = drawing(history)

    assert "  flags   2 unknown-harness, 1 no-logprobs, 1 ambiguous" in shown
    assert "└─● 1-2  main       0    6        6  2 unknown-harness, 1 no-logprobs" in shown
    assert "  ● 3    main      12    3        3  edited, ended by length, ambiguous" in shown


def test_a_torn_tail_is_mentioned(make_story):
    history = make_story()
    shown = lines(history.tree, execution=history.execution, torn_bytes=1234)

    assert "  torn    1,234 bytes of a last record are left out" == shown[-1]


def test_texts_stand_under_their_calls(make_story):
    history = make_story()
    one = history.call(1, 0, {"system": [65, 66], "user": [67]}, 3, text="I look.")
    history.call(2, one, {"tool": [68, 69]}, 3, text="Done.", role="main-summary")
    shown = drawing(history, text=True, decode=lambda ids: "".join(map(chr, ids)))

    assert [
        "└─● 1  main               0    4        3",
        "  │   1 system    AB",
        "  │   1 user      C",
        "  │   1 reply     I look.",
        "  ● 2  main-summary       7    3        3",
        "      2 tool      DE",
        "      2 reply     Done.",
    ] == shown[-7:]


def test_without_a_tokenizer_only_replies_are_shown(make_story):
    history = make_story()
    history.call(1, 0, {"system": 2, "user": 1}, 3, text="I look.")

    assert "      1 reply     I look." == drawing(history, text=True)[-1]
    assert "root 1" in drawing(history, text=True)[-3]


def test_long_texts_are_cut_with_and_without_a_terminal(make_story):
    history = make_story()
    history.call(1, 0, {"user": 1}, 3, text="x" * 500)

    assert f"      1 reply     {'x' * 99}…" == drawing(history, text=True)[-1]
    assert f"      1 reply     {'x' * 41}…" == drawing(history, text=True, width=60)[-1]


def test_what_agents_write_cannot_steer_the_terminal(make_story):
    history = make_story(execution="x\x1b[2J")
    hostile = "a\x1b[31mb\nc\r\x9b0mfin \u202egnp.exe"
    history.call(1, 0, {"user\x1b": 1}, 3, text=hostile, agent=hostile[:9], fork="new\x07")
    history.fail(2, "reason\x1b[1m")
    shown = "\n".join(drawing(history, text=True, leaves=True, decode=lambda ids: hostile))

    assert [] == [char for char in shown if char != "\n" and not char.isprintable()]
    assert "a·[31mb↵c··0mfin ·gnp.exe" in shown


@pytest.mark.parametrize("width", [20, 40, 79])
def test_no_line_is_wider_than_the_terminal(errand, width):
    shown = drawing(errand, width=width, leaves=True, text=True)
    whole = drawing(errand, leaves=True, text=True)

    assert width >= max(map(len, shown))
    assert len(whole) == len(shown)
    assert [line if len(line) <= width else line[: width - 1] + "…" for line in whole] == shown


def test_wide_characters_count_as_two_columns(make_story):
    history = make_story()
    history.call(1, 0, {"user": 1}, 3, text="漢字漢字漢字漢字")

    assert "      1 reply     漢字漢…" == drawing(history, text=True, width=26)[-1]
    assert "      1 reply     漢字漢…" == drawing(history, text=True, width=25)[-1]


def test_colours_change_nothing_but_colours(errand):
    plain = drawing(errand, leaves=True)
    coloured = drawing(errand, leaves=True, colour=True)
    codes = {f"\x1b[{code}m" for code in (0, 1, 2, 31, 32, 33, 34, 35, 36)}
    stripped = "\n".join(coloured)
    for code in codes:
        stripped = stripped.replace(code, "")

    assert "\n".join(plain) == stripped
    assert "\x1b[33mretry\x1b[0m" in "\n".join(coloured)
    assert "\x1b" not in "\n".join(plain)


def test_a_reply_is_one_line_of_thinking_text_and_calls():
    call = ToolCall(id="1", name="run", arguments='{"a": 1}')
    whole = Message(role="assistant", text=" Yes. ", reasoning="Hm.\n", calls=(call, call))

    assert '(Hm.) | Yes. | run {"a": 1} | run {"a": 1}' == said(whole)
    assert "" == said(Message(role="assistant"))
