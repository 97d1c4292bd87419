"""The simulated GPU itself: what it refuses, counts and limits, and that it computes the same."""

import gc

import pytest
import torch
from torch import nn

from tests import simulated_gpu
from tests.simulated_gpu import DEVICE, counted, limited

NEAR = torch.arange(12.0).view(3, 4)


@pytest.fixture
def far():
    return NEAR.to(DEVICE)


COMPUTED = {
    "sum of rows": lambda t: t.sum(1),
    "number": lambda t: t * 0.1 + 1,
    "number of double precision": lambda t: t.double() * 0.1,
    "number first": lambda t: 1 / (2 - t.clamp(max=1)),
    "half precision": lambda t: (t.bfloat16() * 0.3).float(),
    "product": lambda t: t @ t.mT,
    "view written to": lambda t: t.clone().index_fill_(0, torch.tensor([1], device=t.device), 7),
    "slice written to": lambda t: _written(t),
    "out": lambda t: torch.mul(t, t, out=torch.empty_like(t)),
    "out without room": lambda t: torch.cat([t, t], out=torch.empty(0, device=t.device)),
    "sort": lambda t: t.sort(dim=-1, descending=True, stable=True).values,
    "softmax": lambda t: torch.softmax(t, -1).cumsum(-1),
    "mask": lambda t: t.masked_fill(t > 3, -1.0)[t[:, 0] > 1],
    "stack": lambda t: torch.stack([t, t.flip(0)]).flatten(1).unflatten(1, (2, -1)),
    "nothing": lambda t: t[:0].repeat(2, 1),
    "arange": lambda t: torch.arange(3, device=t.device).repeat(2, 1),
    "attention": lambda t: nn.functional.scaled_dot_product_attention(*[t[None, None]] * 3),
    "transposed": lambda t: t.mT.contiguous().view(-1),
    "where": lambda t: torch.where(t > 3, t, 0.5),
}


def _written(tensor):
    copy = tensor.clone()
    copy[1:, :2].add_(1).mul_(2)
    copy[0] = 5.0
    return copy


@pytest.mark.parametrize("name", COMPUTED)
def test_it_computes_the_bits_of_the_cpu(name, far):
    found, expected = COMPUTED[name](far), COMPUTED[name](NEAR)
    assert found.device == DEVICE
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    assert torch.equal(found.cpu(), expected)


MIXED = {
    "sum": lambda t: t + NEAR,
    "sum the other way": lambda t: NEAR + t,
    "in place": lambda t: t.add_(NEAR),
    "into a cpu tensor": lambda t: NEAR.clone().mul_(t),
    "product": lambda t: t @ NEAR.mT,
    "cat": lambda t: torch.cat([t, NEAR]),
    "where": lambda t: torch.where(NEAR > 3, t, 0.0),
    "mask": lambda t: t.masked_fill_(NEAR > 3, 0.0),
    "rows selected by cpu indices": lambda t: t.index_select(0, torch.tensor([1])),
    "embedding": lambda t: nn.functional.embedding(torch.tensor([1]), t),
    "cache": lambda t: t.index_copy_(0, torch.tensor([0]), t[:1].clone()),
    "out": lambda t: torch.mul(t, t, out=torch.empty(3, 4)),
    "linear layer": lambda t: nn.Linear(4, 2)(t),
}


@pytest.mark.parametrize("name", MIXED)
def test_it_refuses_operations_that_mix_devices(name, far):
    with pytest.raises(
        RuntimeError, match=r"at least two devices, simgpu:0 and cpu|in the same device"
    ):
        MIXED[name](far)


def test_numpy_is_refused(far):
    with pytest.raises(TypeError, match="can't convert simgpu:0"):
        far.numpy()


def test_numbers_on_the_host_are_taken_as_cuda_takes_them(far):
    assert torch.equal((far + torch.tensor(2.0)).cpu(), NEAR + 2)


COPIES = {
    "cpu": (lambda t: t.cpu(), (1, 0, 1)),
    "tolist": (lambda t: t.tolist(), (1, 0, 1)),
    "item": (lambda t: t[0, 0].item(), (1, 0, 1)),
    "bool": (lambda t: bool((t > 3).any()), (1, 0, 1)),
    "float": (lambda t: float(t.sum()), (1, 0, 1)),
    "equal": (lambda t: torch.equal(t, t + 1), (1, 0, 1)),
    "nonzero": (lambda t: t.nonzero(), (1, 0, 1)),
    "to the device": (lambda _: NEAR.to(DEVICE), (0, 1, 1)),
    "without waiting": (lambda _: NEAR.to(DEVICE, non_blocking=True), (0, 1, 0)),
    "tensor": (lambda _: torch.tensor([1.0], device=DEVICE), (0, 1, 1)),
    "written from the host": (lambda t: t.copy_(NEAR), (0, 1, 1)),
    "indices of the host": (lambda t: t[torch.tensor([0, 1])], (0, 1, 1)),
    "computed there": (lambda t: (t * 2).softmax(-1).argmax(-1), (0, 0, 0)),
    "made there": (lambda _: torch.zeros(3, device=DEVICE), (0, 0, 0)),
    "copied there": (lambda t: t.bfloat16().clone(), (0, 0, 0)),
    "views": (lambda t: t[1:].T.unsqueeze(0).expand(2, -1, -1), (0, 0, 0)),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_and_waits_are_counted(name, far):
    act, (to_host, to_device, waits) = COPIES[name]
    with counted() as counts:
        act(far)
    assert (counts.to_host, counts.to_device, counts.waits) == (to_host, to_device, waits)


def test_operations_and_the_bytes_they_touch_are_counted(far):
    with counted() as counts:
        far[1:] @ far.mT
        far.expand(5, -1, -1).sum()
        far.index_select(0, torch.zeros(1, dtype=torch.long, device=DEVICE))
    names = ("mm", "sum", "index_select", "zero_")
    assert counts.operations == {f"aten::{name}": 1 for name in names}
    assert counts.touched["aten::mm"] == 4 * (8 + 12 + 6)
    assert counts.touched["aten::sum"] == 4 * (5 * 12 + 1)
    assert counts.touched["aten::index_select"] == 8 + 2 * 4 * 4


def test_bytes_are_held_as_long_as_a_view_is(far):
    gc.collect()
    before = simulated_gpu.held()
    with counted() as counts:
        made = far * 2
        row = made[1]
        assert simulated_gpu.held() == before + 48
        del made
        assert simulated_gpu.held() == before + 48
        assert row.tolist() == [8.0, 10.0, 12.0, 14.0]
        del row
    gc.collect()
    assert simulated_gpu.held() == before
    assert counts.peak == before + 48
    assert counts.allocated == 48


def test_more_than_its_memory_is_refused_and_leaves_what_there_was(far):
    with limited(100):
        kept = far * 2
        with pytest.raises(torch.OutOfMemoryError, match="48 more were asked for"):
            [far * number for number in range(3)]
        del kept
        again = far * 3
    assert torch.equal(again.cpu(), NEAR * 3)


def test_an_exception_frees_what_a_call_held(far):
    gc.collect()
    before = simulated_gpu.held()

    def breaks():
        kept = far * 2
        raise ValueError(str(kept.shape))

    with pytest.raises(ValueError, match="3, 4"):
        breaks()
    gc.collect()
    assert simulated_gpu.held() == before


def test_indices_of_another_device_are_refused_by_cpu_tensors(far):
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        NEAR[far[0].long().clamp(max=2)]


def test_parameters_move_by_their_data_and_stay_tied():
    one, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    other.weight = one.weight
    expected = one.weight.detach().clone()
    one.weight.data = one.weight.detach().to(DEVICE)
    assert other.weight is one.weight
    assert other.weight.device == DEVICE
    assert torch.equal(other.weight.cpu(), expected)
