"""Admission: which leaves are drawn, which tokens are targets, and the paper's case study."""

from collections import Counter
from random import Random

import numpy as np

from gyre.trajectory.selection import generator, row, select_trajectories
from gyre.trajectory.tree import Tree
from gyre.types.call_records import CallClosed, CallDelivered, CallEchoed, NewSegment
from gyre.types.conversation import Message
from gyre.types.ids import ROOT, CallId, EngineName, ExecutionId, SegmentId
from gyre.types.sampling import SamplingParams, Span

EXECUTION = ExecutionId("f3ad38e5")


def raw(values, dtype=np.int32):
    return np.array(values, dtype=dtype).tobytes()


class Grower:
    """Adds calls to a tree by hand, each token with an id of its own."""

    def __init__(self):
        self.tree = Tree()
        self._id = 0

    def fresh(self, count):
        self._id += count
        return list(range(self._id - count, self._id))

    def segment(self, label, tokens, trim=0):
        ids = self.fresh(tokens)
        return NewSegment(label=label, key=raw(ids)[:16].ljust(16), ids=raw(ids), trim=trim)

    def call(
        self, parent, inputs, output=4, *, role="main", logprobs=True, deliver=True, agent=None
    ):
        call = CallId(len(self.tree.calls) + 1)
        ids = self.fresh(output)
        self.tree.apply(
            CallClosed(
                call=call,
                parent=parent,
                inputs=tuple(inputs),
                prompt=raw(self.fresh(1)),
                output=raw(ids),
                logprobs=raw([-float(one) for one in ids], np.float32) if logprobs else None,
                spans=(Span(engine=EngineName("e"), version=int(call), tokens=output),),
                finish="stop",
                message=Message(role="assistant"),
                keys=(),
                role=role,
                harness="test",
                agent=agent,
                fork=None,
                ambiguous=False,
                sampling=SamplingParams(),
                opened_at=0.0,
                closed_at=0.0,
            )
        )
        if deliver:
            self.tree.apply(CallDelivered(call=call))
        return call

    def at(self, call):
        return self.tree.calls[call].segment

    def chain(self, parent, calls, *, role="main", first=(), agent=None):
        """So many calls in a row, a tool result before each but the first."""
        made = []
        for number in range(calls):
            inputs = list(first) if number == 0 else [self.segment("tool", 3)]
            call = self.call(parent, inputs, role=role, agent=agent)
            made.append(call)
            parent = self.at(call)
        return made


def case_study():
    """The shape of the paper's execution f3ad38e5: two prompts, ten leaves, 636 calls.

    The main agent compacts once; five sub-agents make six task paths and one summary, because one
    of them compacts and another is tried twice.
    """
    grower = Grower()
    main_prompt, sub_prompt = grower.segment("system", 50), grower.segment("system", 30)
    before = grower.chain(ROOT, 85, first=[main_prompt, grower.segment("user", 9)])
    main_root = grower.tree.calls[before[0]].root
    grower.call(grower.at(before[-2]), [grower.segment("user", 5)], role="main-summary")
    grower.chain(main_root, 100, first=[grower.segment("user", 20)])

    catalog = grower.chain(
        ROOT, 97, role="sub-agent", first=[sub_prompt, grower.segment("user", 9)], agent="catalog"
    )
    sub_root = grower.tree.calls[catalog[0]].root
    summary = [grower.segment("user", 5)]
    grower.call(grower.at(catalog[-2]), summary, role="sub-agent-summary", agent="catalog")
    lengths = {"catalog": 80, "frames": 75, "flight": 71, "fdw": 26, "fdw again": 100}
    for agent, calls in lengths.items():
        first = [grower.segment("user", 9)]
        grower.chain(sub_root, calls, role="sub-agent", first=first, agent=agent)
    return grower.tree


def test_the_case_study_has_two_roots_ten_leaves_and_636_calls():
    tree = case_study()
    roles = Counter(leaf.role for leaf in tree.leaves())

    assert 636 == len(tree.calls)
    assert 2 == len(tree.roots())
    assert {"main": 2, "main-summary": 1, "sub-agent": 6, "sub-agent-summary": 1} == roles


def test_four_trajectories_of_the_case_study_are_both_mains_the_summary_and_one_sub_agent():
    """J_max = 4, for any seed; shared targets count once."""
    tree = case_study()
    for seed in range(20):
        drawn = select_trajectories(tree, generator(seed, EXECUTION), max_trajectories=4)
        roles = [tree.calls[one.leaf].role for one in drawn]
        assert ["main", "main", "main-summary", "sub-agent"] == roles
        targets = [call for one in drawn for call in one.targets]
        assert len(targets) == len(set(targets))
        summary = next(one for one in drawn if tree.calls[one.leaf].role == "main-summary")
        assert (summary.leaf,) == summary.targets


def test_all_trajectories_together_train_every_trainable_token_once():
    """The rows' targets are the tree's sampled tokens, each exactly once."""
    tree = case_study()
    drawn = select_trajectories(tree, generator(1, EXECUTION), max_trajectories=None)
    rows = [row(tree, one) for one in drawn]
    trained = [token for one in rows for token in one.ids[one.targets].tolist()]
    sampled = [token for call in tree.calls for token in tree.output_ids(call).tolist()]

    assert 10 == len(drawn)
    assert sorted(sampled) == sorted(trained)
    for one in rows:
        assert (-one.logprobs).astype(int).tolist() == one.ids[one.targets].tolist()


def test_a_draw_is_replayed_by_its_seed():
    tree = case_study()

    once, twice = (select_trajectories(tree, generator(3, EXECUTION)) for _ in range(2))
    assert once == twice
    assert 1 < len(
        {select_trajectories(tree, generator(seed, EXECUTION))[-1].leaf for seed in range(30)}
    )


def test_leaves_are_drawn_in_proportion_to_their_unmasked_tokens():
    grower = Grower()
    first = grower.call(ROOT, [grower.segment("system", 2)], output=10)
    short = grower.call(grower.at(first), [grower.segment("user", 2)], output=10)
    long = grower.call(grower.at(first), [grower.segment("user", 2)], output=70)
    rng = Random(0)
    leaves = Counter(
        select_trajectories(grower.tree, rng, max_trajectories=1)[0].leaf for _ in range(2000)
    )

    # 20 against 80 unmasked tokens, the shared first reply counted for both.
    assert abs(leaves[short] / 2000 - 0.2) < 0.03
    assert 2000 == leaves[short] + leaves[long]


def test_the_second_path_trains_only_what_the_first_did_not():
    grower = Grower()
    first = grower.call(ROOT, [grower.segment("system", 2)], output=5)
    for size in (6, 7):
        grower.call(grower.at(first), [grower.segment("user", 2)], output=size)
    one, other = select_trajectories(grower.tree, generator(0, EXECUTION))

    assert first in one.targets
    assert (other.leaf,) == other.targets
    assert 18 == one.num_targets + other.num_targets


def test_aux_uncommitted_and_unmeasured_outputs_are_never_targets():
    """SPEC 4.1, 4.5, 5: recorded, and no more."""
    grower = Grower()
    main = grower.call(ROOT, [grower.segment("system", 2)])
    grower.call(ROOT, [grower.segment("user", 2)], role="aux")
    grower.call(grower.at(main), [grower.segment("user", 2)], deliver=False)
    blind = grower.call(grower.at(main), [grower.segment("user", 2)], logprobs=False)
    drawn = select_trajectories(grower.tree, generator(0, EXECUTION), max_trajectories=None)

    assert [blind] == [one.leaf for one in drawn]
    assert [(main,)] == [one.targets for one in drawn]


def test_a_trimmed_token_is_no_target_on_the_path_that_trims_it():
    """T05: the ambiguous stop is dropped with its log-probability when a turn follows."""
    grower = Grower()
    first = grower.call(ROOT, [grower.segment("system", 2)], output=5)
    last = grower.call(grower.at(first), [grower.segment("tool", 3, trim=1)], output=2)
    (drawn,) = select_trajectories(grower.tree, generator(0, EXECUTION))
    made = row(grower.tree, drawn)

    outputs = [grower.tree.output_ids(call).tolist() for call in (first, last)]
    assert 4 + 2 == drawn.num_targets == len(made.targets)
    assert outputs[0][:4] + outputs[1] == made.ids[made.targets].tolist()
    assert outputs[0][4] not in made.ids.tolist()


def test_a_final_turn_is_never_trimmed():
    """T05: the same reply as a leaf keeps its stop."""
    grower = Grower()
    call = grower.call(ROOT, [grower.segment("system", 2)], output=5)
    (drawn,) = select_trajectories(grower.tree, generator(0, EXECUTION))

    assert grower.tree.output_ids(call).tolist() == row(grower.tree, drawn).ids[-5:].tolist()


def test_only_the_committed_part_of_a_cut_reply_is_in_its_row():
    grower = Grower()
    call = grower.call(ROOT, [grower.segment("system", 2)], output=5, deliver=False)
    grower.tree.apply(CallEchoed(call=call, tokens=3))
    (drawn,) = select_trajectories(grower.tree, generator(0, EXECUTION))
    made = row(grower.tree, drawn)

    assert 3 == drawn.num_targets
    assert grower.tree.output_ids(call).tolist()[:3] == made.ids[made.targets].tolist()
    assert 2 + 1 + 3 == len(made.ids)


def test_rows_are_copies():
    """Making rows twice gives equal rows, and writing to one changes nothing."""
    tree = case_study()
    (drawn,) = select_trajectories(tree, generator(0, EXECUTION), max_trajectories=1)
    one = row(tree, drawn)
    kept = one.ids.copy()
    one.ids[:] = 0
    one.logprobs[:] = 0
    again = row(tree, drawn)

    assert kept.tolist() == again.ids.tolist()
    assert 0 != again.logprobs.sum()


def test_versions_follow_spans():
    grower = Grower()
    call = grower.call(ROOT, [grower.segment("system", 2)], output=4)
    node = grower.tree.calls[call]
    node.spans = (
        Span(engine=EngineName("a"), version=3, tokens=1),
        Span(engine=EngineName("b"), version=4, tokens=3),
    )
    (drawn,) = select_trajectories(grower.tree, generator(0, EXECUTION))
    made = row(grower.tree, drawn)

    assert made.versions is not None
    assert [3, 4, 4, 4] == made.versions.tolist()
    node.spans = (Span(engine=EngineName("a"), version=None, tokens=4),)
    assert row(grower.tree, drawn).versions is None


def test_storage_is_the_number_of_unique_tokens():
    """SPEC 4.4: 636 calls, each token once."""
    tree = case_study()
    sent = sum(len(tree.prompt_ids(call)) + tree.calls[call].num_output for call in tree.calls)

    assert tree.num_tokens == len(
        {token for segment in tree.segments for token in tree.tokens(segment.id).tolist()}
    )
    assert 40 * tree.num_tokens < sent
    assert SegmentId(0) not in tree.roots()
