"""What masters in fp32 promise, on the nano model with the settings of the paper."""

import pytest

from benchmarks.numerics import field, ours


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def result(request):
    return ours(request.param)


def test_evaluating_with_masters_changes_no_bit(result):
    assert (result.drift, result.changed) == (0, 0)


def test_the_update_that_masters_make_is_the_one_that_was_meant(result):
    assert result.cosine >= 0.9999
    assert result.moved > 0.999


@pytest.mark.parametrize(("sums", "best"), [(False, 0.7), (True, 0.95)])
def test_the_ways_of_the_field_lose_much_of_it_in_bfloat16(sums, best):
    found = field("bfloat16", sums=sums)
    assert found.cosine < best
    assert found.drift > 0.5
    assert found.changed > 0
