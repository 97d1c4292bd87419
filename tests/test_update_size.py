"""The size of a step, in roundings of what is served: against cases worked out by hand."""

import math

import numpy as np
import pytest
import torch

from germline.config import Full, LowRank
from germline.engines.master_weights import Masters
from germline.engines.update_size import SAMPLE, UpdateSizeMeter, _sample, _spacing
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.types import TensorInfo, Update

LINEAR = "layers.0.linear.weight"


def masters(values, space=None, name=LINEAR, kind="linear"):
    values = torch.as_tensor(values, dtype=torch.float32)
    info = TensorInfo(name, tuple(values.shape), kind, 0)
    return Masters({name: values.clone()}, [info], make_space(space or Full()), Sgd(), "constant")


def update(*coefficients):
    return Update(0, 0, 0.1, 0.1, coefficients or (1.0,))


def measured(before, after, dtype, **more):
    """Measure a step that is made by hand."""
    weights = masters(before, **more)
    gauge = UpdateSizeMeter(weights, dtype)
    weights.tensors[LINEAR].copy_(torch.as_tensor(after, dtype=torch.float32))
    return gauge.read(update())


@pytest.mark.parametrize(
    ("dtype", "value", "spacing"),
    [
        (torch.float32, 1.0, 2.0**-23),
        (torch.bfloat16, 1.0, 2.0**-7),
        (torch.bfloat16, -3.0, 2.0**-6),
        (torch.float16, 0.75, 2.0**-11),
        (torch.float16, 1e-7, 2.0**-24),
        (torch.float32, 0.0, 2.0**-149),
    ],
)
def test_the_spacing_is_the_distance_to_the_next_number(dtype, value, spacing):
    assert _spacing(torch.tensor([value]), dtype).tolist() == [spacing]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_spacing_is_that_of_the_dtype_itself(dtype):
    values = torch.linspace(-3, 3, 101).to(dtype)
    above = torch.nextafter(values.abs(), torch.tensor(math.inf, dtype=dtype))
    distances = above.double() - values.abs().double()
    np.testing.assert_array_equal(_spacing(values.float(), dtype), distances)


# bf16 numbers between 1 and 2 are 2^-7 apart: half of the weights make a step of two of those.
STEPS = {
    "two spacings": ([1.0, 1.0], [1.0, 1.0 + 2.0**-6], torch.bfloat16, math.sqrt(2), 0.5),
    "too small": ([1.0, 1.5], [1.0 + 2.0**-10, 1.5 + 2.0**-10], torch.bfloat16, 0.125, 0.0),
    "from zero, where they arrive": ([0.0, 0.0], [1.0, 1.0], torch.bfloat16, 2.0**7, 1.0),
    "none, at zero": ([0.0, 0.0], [0.0, 0.0], torch.float32, 0.0, 0.0),
}


@pytest.mark.parametrize(
    ("before", "after", "dtype", "roundings", "moved"), STEPS.values(), ids=STEPS
)
def test_a_step_is_measured_in_spacings_of_the_serving_dtype(
    before, after, dtype, roundings, moved
):
    found = measured([before], [after], dtype)
    assert found.rms == pytest.approx(np.sqrt(np.mean(np.subtract(after, before) ** 2)))
    assert found.in_roundings == pytest.approx(roundings)
    assert found.moved == moved


def test_the_middle_and_the_smallest_tensor_are_told_apart_and_shares_count_numbers():
    names = [f"layers.{n}.linear.weight" for n in range(3)]
    infos = [
        TensorInfo(name, (1, size), "linear", 0)
        for name, size in zip(names, (1, 1, 6), strict=True)
    ]
    tensors = {info.name: torch.ones(info.shape) for info in infos}
    weights = Masters(tensors, infos, make_space(Full()), Sgd(), "constant")
    gauge = UpdateSizeMeter(weights, torch.bfloat16)
    for name, steps in zip(names, (8, 2, 0), strict=True):
        weights.tensors[name].add_(steps * 2.0**-7)
    found = gauge.read(update())
    assert found is not None
    assert (found.in_roundings, found.least_in_roundings) == (2.0, 0.0)
    assert found.moved == 0.25
    assert found.rms == pytest.approx(2.0**-7 * math.sqrt((64 + 4) / 8))


def test_a_large_tensor_is_sampled_over_all_its_rows_and_columns():
    tensor = torch.arange(300 * 210).reshape(300, 210)
    info = TensorInfo("w", (300, 210), "linear", 0)
    found = _sample(tensor, info)
    assert SAMPLE / 2 < len(found) <= SAMPLE
    assert len({int(one) % 210 for one in found}) == 210
    assert len({int(one) // 210 for one in found}) == 300


def test_the_sample_of_a_large_tensor_measures_what_all_of_it_would():
    before = torch.linspace(0.5, 1.5, 100_000).reshape(100, 1000)
    after = before + 2.0**-9
    found = measured(before, after, torch.bfloat16)
    changed = float((after.bfloat16() != before.bfloat16()).double().mean())
    assert found.moved == pytest.approx(changed, abs=0.02)
    assert found.rms == pytest.approx(2.0**-9, rel=1e-3)


@pytest.mark.parametrize(
    ("coefficients", "rank"), [((1.0, -1.0), 4), ((1.0, 0.0), 2), ((1.0,) * 9, 6)]
)
def test_the_rank_of_a_step_is_that_of_its_directions_bounded_by_the_matrix(coefficients, rank):
    weights = masters(torch.ones(6, 8), LowRank(rank=2))
    found = UpdateSizeMeter(weights, torch.float32).read(update(*coefficients))
    assert found is not None
    assert found.rank == pytest.approx(rank)


def test_where_no_rank_is_searched_a_step_has_none():
    assert measured([[1.0]], [[2.0]], torch.float32).rank is None


def test_measuring_leaves_the_weights_as_they_are():
    weights = masters(torch.ones(4, 4))
    before = weights.digest()
    UpdateSizeMeter(weights, torch.bfloat16).read(update())
    assert weights.digest() == before
