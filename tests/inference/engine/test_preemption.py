"""What failed is not tried again at once, and is not given up either."""

from gyre.inference.engine.cuda_graphs import FailureBackoff


def test_what_failed_is_tried_again_after_it_was_wanted_so_often():
    put_off = FailureBackoff(3)
    put_off.fail("one")

    assert [False, False, False, True, True] == [put_off.is_due("one") for _ in range(5)]


def test_one_that_failed_puts_off_no_other():
    put_off = FailureBackoff(3)
    put_off.fail(("one", True))

    assert put_off.is_due(("one", False))
    assert not put_off.is_due(("one", True))


def test_a_new_beginning_puts_nothing_off():
    put_off = FailureBackoff(3)
    put_off.fail("one")
    put_off.clear()

    assert put_off.is_due("one")
