"""Kernels are told apart by what they do, and seconds of a host by the functions they are in."""

import pytest
from benchmarks.gpu.profile.hosts import taken
from benchmarks.gpu.profile.kernels import Kernel, by_group, group_of


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_per_fused__to_copy_add_mean_paged_attention_pow_rsqrt_1", "compiled"),
        ("triton_poi_fused_flex_attention_1", "compiled"),
        ("_read", "attention"),
        ("_join", "attention"),
        ("_write", "copies and fills"),
        ("nvjet_sm90_tst_48x64_64x15_4x2_h_bz_TNN", "matrices"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "matrices"),
        ("Memcpy HtoD (Pinned -> Device)", "copies between host and device"),
        ("Memcpy DtoD (Device -> Device)", "copies and fills"),
        ("void at::native::index_elementwise_kernel<128, 4>", "indexing"),
        ("void at::native::vectorized_elementwise_kernel<4, exp_kernel_cuda>", "other"),
    ],
)
def test_a_kernel_is_of_the_group_of_what_it_does(kernel, group):
    assert group == group_of(kernel)


def test_groups_come_with_the_longest_first():
    found = by_group(
        [
            Kernel(name="nvjet_one", calls=1, seconds=1.0),
            Kernel(name="Memset (Device)", calls=1, seconds=2.5),
            Kernel(name="nvjet_two", calls=1, seconds=2.0),
        ]
    )

    assert [("matrices", 3.0), ("copies and fills", 2.5)] == [*found.items()]


class Work:
    def outer(self):
        return self.inner() + 1

    def inner(self):
        return 1

    def fail(self):
        raise ZeroDivisionError


def test_functions_are_timed_while_it_lasts_and_are_themselves_afterwards():
    before = Work.inner
    with taken((Work, "outer", "out"), (Work, "inner", "in"), (Work, "fail", "fail")) as host:
        assert 2 == Work().outer()
        with pytest.raises(ZeroDivisionError):
            Work().fail()

    assert {"in": 1, "out": 1, "fail": 1} == host.calls
    assert host.seconds["in"] <= host.seconds["out"]
    assert before is Work.inner
