"""Noise as tensors: the bits of `noise.py` on every device, and sums rounded as on a CPU."""

import importlib.util
import logging
import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
import torch

from germline import noise, tensor_noise
from germline.tensor_noise import NoiseStream, cpu_noise
from tests.other_process import python

CPU = torch.device("cpu")
STREAM = NoiseStream(-7, 3, "model.layers.0.self_attn.q_proj.weight")
DIRECTIONS = [5, 2**63, 0]
SHARDS = [(1, 0), (40, 2**36 - 7), (5000, 3), (33, 16)]
"""Number of elements, and the first of them."""
COEFFICIENTS = [0.3, 0.0, -1e-7, 1.7, 0.0]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def same_bits(found, expected):
    return found.dtype == torch.float32 and np.array_equal(
        found.cpu().numpy().view("u4"), expected.view("u4")
    )


def rows(stream, directions, count, start):
    return noise.draw_noise_rows(
        stream.run_seed, stream.generation, directions, stream.name, count, start
    )


def summed(stream, coefficients, count, start):
    """Multiply, round, add, round: in the order of directions."""
    total = np.zeros(count, dtype=np.float32)
    for direction, coefficient in enumerate(coefficients):
        drawn = rows(stream, [direction], count, start)[0]
        total = total + drawn * np.float32(coefficient)
    return total


# --- the same bits however they are computed


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("count", "start"), [*SHARDS, (10_007, 5)])
def test_a_shard_has_the_bits_of_the_whole_and_sums_are_rounded_twice(
    count, start, threads, monkeypatch
):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(cpu_noise, "PIECE", 1000)
    drawn = tensor_noise.normals(STREAM, DIRECTIONS, count, start)
    assert same_bits(drawn, rows(STREAM, DIRECTIONS, count, start))
    total = tensor_noise.weighted_sum(STREAM, COEFFICIENTS, count, start)
    assert same_bits(total, summed(STREAM, COEFFICIENTS, count, start))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7,), (65536,), (131, 1009)])
def test_a_perturbed_tensor_is_the_center_plus_scaled_noise_rounded_once(shape, dtype, threads):
    count = math.prod(shape)
    center = torch.linspace(-0.3, 0.7, count).view(shape)
    kept, out = center.clone(), torch.empty(shape, dtype=dtype)
    drawn = rows(STREAM, [5], count, 0)[0]
    expected = torch.from_numpy(drawn * np.float32(-0.01) + center.flatten().numpy())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tensor_noise.write_perturbed(STREAM, 5, -0.01, center, out)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(out, expected.view(shape).to(dtype))
    assert torch.equal(center, kept)


def test_perturbing_a_tensor_holds_no_noise_of_its_size():
    center, out = torch.zeros(2**22), torch.empty(2**22, dtype=torch.bfloat16)
    tracemalloc.start()
    tensor_noise.write_perturbed(STREAM, 0, 0.1, center, out)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held <= 2**21 * torch.get_num_threads() < center.nbytes


def test_threads_of_a_caller_may_draw_long_rows_at_once():
    alone = rows(STREAM, range(4), 200_000, 0)
    with ThreadPoolExecutor(2) as pool:
        drawn = pool.map(lambda d: tensor_noise.normals(STREAM, [d], 200_000), range(4))
    assert all(same_bits(one[0], row) for one, row in zip(drawn, alone, strict=True))


# --- what is asked for


@pytest.mark.parametrize("directions", [[], [1, 2]])
def test_nothing_is_drawn_of_nothing(directions):
    assert tensor_noise.normals(STREAM, directions, 0).shape == (len(directions), 0)
    assert tensor_noise.normals(STREAM, [], 4).shape == (0, 4)
    assert torch.equal(tensor_noise.weighted_sum(STREAM, [0.0, 0.0], 3), torch.zeros(3))


def test_directions_without_a_coefficient_are_not_drawn(monkeypatch):
    asked = []

    def draw(stream, directions, into, start):
        asked.extend(directions)
        into[:] = 1

    monkeypatch.setattr(cpu_noise, "_draw", draw)
    total = tensor_noise.weighted_sum(STREAM, COEFFICIENTS, 50)
    assert asked == [0, 2, 3]
    assert total.tolist() == pytest.approx([2.0] * 50)


@pytest.mark.parametrize(("height", "width"), [(7, 5), (300, 1000)])
def test_a_sum_of_outer_products_is_rounded_after_every_product_and_addition(height, width):
    a, b = (rows(STREAM, DIRECTIONS, count, 0) for count in (height, width))
    expected = np.zeros((height, width), dtype=np.float32)
    for left, right in zip(a, b, strict=True):
        expected = expected + left[:, None] * right
    found = tensor_noise.outer_sum(torch.from_numpy(a), torch.from_numpy(b))
    assert same_bits(found, expected)


# --- on a GPU

INTERPRETED = """
import numpy as np, torch
from germline.tensor_noise import triton_noise as kernels
from tests.other_process import python
from tests.test_tensor_noise import *
assert sum(1 for _ in SHARDS) == 4
for count, start in SHARDS:
    drawn = kernels.normals(STREAM, DIRECTIONS, count, start, CPU)
    assert same_bits(drawn, rows(STREAM, DIRECTIONS, count, start)), (count, start)
    weights = [pair for pair in enumerate(COEFFICIENTS) if pair[1]]
    total = kernels.weighted_sum(STREAM, weights, count, start, CPU)
    assert same_bits(total, summed(STREAM, COEFFICIENTS, count, start)), (count, start)
sizes = {"first": 40, "second": 5000, "third": 1}
together = noise.concatenated_noise(3, 1, DIRECTIONS, sizes)
assert same_bits(kernels.concatenated_noise(3, 1, DIRECTIONS, sizes, CPU), together)
a, b = (torch.from_numpy(rows(STREAM, DIRECTIONS, count, 0)) for count in (70, 131))
assert torch.equal(kernels.outer_sum(a, b), tensor_noise.outer_sum(a, b))
print("equal")
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from germline.tensor_noise import triton_noise as kernels
def check(source):
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(kernels._EXACTLY))
    assert "st.global" in made.asm["ptx"]
    assert "fma" not in made.asm["ptx"]
pointers = {"out": "*fp32", "table": "*fp32", "addresses": "*i64"}
numbers = {"start": "i32", "count": "i32", "BLOCKS": "constexpr"}
drawing = {"stride": "i32"}
summing = {"coefficients": "*fp32", "rows": "i32"}
for kernel, more in ((kernels._normals, drawing), (kernels._weighted_sum, summing)):
    source = triton.compiler.ASTSource(
        kernel, {**pointers, **more, **numbers}, constexprs={"BLOCKS": kernels.BLOCKS}
    )
    check(source)
numbers = {name: "i32" for name in ("products", "rows", "columns")} | {"TILE": "constexpr"}
tensors = {name: "*fp32" for name in ("out", "a", "b")}
check(triton.compiler.ASTSource(
    kernels._outer_sum, {**tensors, **numbers}, constexprs={"TILE": kernels.TILE}
))
print("exact")
"""


@needs_triton
def test_the_kernels_compute_the_frozen_bits_in_the_interpreter():
    assert python("-W", "error", "-c", INTERPRETED, TRITON_INTERPRET="1").stdout == "equal\n"


@needs_triton
def test_the_kernels_compile_for_a_gpu_without_fusing_products_and_sums(tmp_path):
    done = python("-W", "error", "-c", COMPILED, TRITON_CACHE_DIR=str(tmp_path))
    assert done.stdout == "exact\n"


@needs_triton
def test_kernels_that_cannot_run_are_told_and_done_without(caplog):
    # There is no GPU where the result is wanted, so Triton cannot launch anything.
    with caplog.at_level(logging.WARNING, "germline"):
        assert tensor_noise._of_gpu(CPU) is cpu_noise
    assert "noise on cpu is drawn without Triton, several times slower: " in caplog.text


def test_kernels_of_other_bits_would_be_found():
    assert tensor_noise._agree(cpu_noise, CPU)

    def weighted_sum(stream, weights, count, start, device):
        drawn = cpu_noise.normals(stream, [k for k, _ in weights], count, start, device)
        return (torch.tensor([c for _, c in weights]).double() @ drawn.double()).float()

    rounded = ModuleType("rounded")  # sums in double precision
    vars(rounded).update(vars(cpu_noise), weighted_sum=weighted_sum)
    assert not tensor_noise._agree(rounded, CPU)


@pytest.mark.gpu
def test_a_gpu_with_triton_uses_its_kernels():
    if importlib.util.find_spec("triton"):
        assert tensor_noise._drawer(torch.device("cuda")) is not cpu_noise


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "start"), [*SHARDS, (5_000_000, 77)])
def test_a_gpu_draws_and_sums_the_bits_of_a_cpu(count, start):
    gpu = torch.device("cuda")
    drawn = tensor_noise.normals(STREAM, DIRECTIONS, count, start, gpu)
    assert drawn.device.type == "cuda"
    assert same_bits(drawn, rows(STREAM, DIRECTIONS, count, start))
    total = tensor_noise.weighted_sum(STREAM, COEFFICIENTS, count, start, gpu)
    assert same_bits(total, summed(STREAM, COEFFICIENTS, count, start))
