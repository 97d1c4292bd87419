"""The speed and memory of a machine: from a data sheet, or measured in a few seconds.

The time of a product of `rows` with a weight is the larger of two times: that of its arithmetic,
and that of reading the weight (the roofline of Williams, Waterman and Patterson, CACM 2009). On a
CPU the rate of a product depends on its rows, so it is measured for a few numbers of rows; several
weights are used in turn, so that none is in the cache.

A GPU is assumed to reach 60 % of the bandwidth and 40 % of the arithmetic of its data sheet, as in
docs/engines.md. This was not checked on any GPU.

On a CPU that other programs use too, a thread waits for a core now and then, for a few thousandths
of a second. So an operation is timed over many of these times: its mean is what a run sees beside
the same programs. The share of the cores that they used is told beside it.
"""

import hashlib
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional

from germline import noise
from germline.estimates.machine_load import MachineLoad
from germline.tensor_noise import NoiseStream, write_perturbed

REACHED_BANDWIDTH, REACHED_PRODUCTS = 0.6, 0.4

Clock = Callable[[], float]

Points = Sequence[tuple[int, float]]
"""(rows, FLOP/s), by rows."""

ROWS = (16, 64, 256, 1024)
"""Rows of the products that are measured."""

OUT_OF_CACHE = 128e6
"""Bytes of the weights that are multiplied in turn: more than a last-level cache holds."""

MEASURED_FLOPS = 3e9
"""Arithmetic of the products that are timed together: a few hundredths of a second on one core."""

FEWEST_CALLS, MEASURED_S = 3, 0.3
"""Calls of an operation that are timed, and for how many seconds at least."""

BUSY = 0.1
"""Share of the cores that other programs use, above which it is told."""

CALL_OPERATIONS = 200
NUMBERS = 1 << 20
HASHED_BYTES = 1 << 23
COPIED_BYTES = 1 << 26


@dataclass(frozen=True)
class Hardware:
    """One device and its host.

    Attributes:
        name: the usual name.
        on_gpu: whether it is an accelerator.
        memory_bytes: memory of the device; on a CPU that of the host.
        host_bytes: memory of the host.
        bandwidth: bytes per second that are read from memory or written to it.
        products: FLOP/s of matrix products by dtype name.
        operation_s: seconds of one small tensor operation.
        noise_per_s: normal numbers drawn per second on the host, for factors of low-rank members.
        perturbed_per_s: numbers of a `full` member written per second, including their noise.
        elementwise_per_s: numbers written per second by sums, products and activations that are
            in the cache, by dtype name.
        hashed_per_s: bytes per second of SHA-256, with all threads.
        link_bandwidth: bytes per second between host and device.
        has_bfloat16: whether the device computes in bfloat16; without it, float16 is the choice.
        used_by_others: share of the cores that other programs used while this CPU was measured;
            None if it is unknown.
        start_s: seconds of a run outside of its generations, if they were measured.
    """

    name: str
    on_gpu: bool
    memory_bytes: float
    host_bytes: float
    bandwidth: float
    products: Mapping[str, Points]
    operation_s: float
    noise_per_s: float
    perturbed_per_s: float
    elementwise_per_s: Mapping[str, float]
    hashed_per_s: float
    link_bandwidth: float = math.inf
    has_bfloat16: bool = True
    used_by_others: float | None = None
    start_s: float = 0.0

    @property
    def source_of_times(self) -> str:
        """Say where the times of an estimate come from, and how far they can be trusted."""
        if self.start_s:
            return "times are from a training of two small generations just now"
        if self.on_gpu:
            return "times are computed from the data sheet, and were not checked on a GPU"
        if self.used_by_others is not None and self.used_by_others >= BUSY:
            return (
                "times are from a measurement just now, beside other programs that used "
                f"{self.used_by_others:.0%} of the cores; without these they are shorter"
            )
        return (
            "times are from a measurement just now; on cores that other programs use, they are up "
            "to five times as long"
        )

    def corrected(self, factor: float, start_s: float) -> "Hardware":
        """Return this machine where all work takes a factor longer than these rates say."""
        return replace(
            self,
            bandwidth=self.bandwidth / factor,
            products={
                dtype: tuple((rows, rate / factor) for rows, rate in points)
                for dtype, points in self.products.items()
            },
            operation_s=self.operation_s * factor,
            noise_per_s=self.noise_per_s / factor,
            perturbed_per_s=self.perturbed_per_s / factor,
            elementwise_per_s={
                dtype: rate / factor for dtype, rate in self.elementwise_per_s.items()
            },
            hashed_per_s=self.hashed_per_s / factor,
            start_s=start_s,
        )

    def lacks(self, dtype: torch.dtype) -> bool:
        """Say whether the device does not compute in a dtype."""
        return dtype == torch.bfloat16 and not self.has_bfloat16

    def flops(self, dtype: torch.dtype, rows: int | float) -> float:
        """Return the FLOP/s of a product with `rows` rows, interpolated on a logarithmic scale."""
        points = self.products[name_of(dtype)]
        rows = min(max(rows, points[0][0]), points[-1][0])
        for (low, slow), (high, fast) in pairwise(points):
            if rows <= high:
                share = math.log(rows / low) / math.log(high / low)
                return slow ** (1 - share) * fast**share
        return points[-1][1]

    def product_s(self, dtype: torch.dtype, rows: int | float, numbers: int | float) -> float:
        """Return the seconds of multiplying `rows` rows with weights: the roofline."""
        arithmetic = 2 * rows * numbers / self.flops(dtype, rows)
        reading = numbers * dtype.itemsize / self.bandwidth
        return max(arithmetic, reading)


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype as settings spell it."""
    return str(dtype).removeprefix("torch.")


def _gpu(name: str, gigabytes: float, terabytes_per_s: float, half: float, link: float) -> Hardware:
    """Describe a GPU by its data sheet: GB, TB/s, TFLOP/s of dense half precision, GB/s of PCIe."""
    reached = {
        "bfloat16": ((1, half * 1e12 * REACHED_PRODUCTS),),
        "float16": ((1, half * 1e12 * REACHED_PRODUCTS),),
        # TF32 is off by default in PyTorch, so fp32 products do not use the tensor cores: they have
        # about an eighth of the half-precision rate on these cards.
        "float32": ((1, half / 8 * 1e12 * REACHED_PRODUCTS),),
    }
    return Hardware(
        name=name,
        on_gpu=True,
        memory_bytes=gigabytes * 1e9,
        host_bytes=math.inf,
        bandwidth=terabytes_per_s * 1e12 * REACHED_BANDWIDTH,
        products=reached,
        operation_s=8e-6,  # an eager launch from Python: assumed
        noise_per_s=2e8,  # drawn on the host, two cores
        perturbed_per_s=2e10,  # the Triton kernel: assumed
        elementwise_per_s=dict.fromkeys(reached, terabytes_per_s * 1e12 * REACHED_BANDWIDTH / 6),
        hashed_per_s=3.6e9,  # SHA-256 of two cores, docs/engines.md
        link_bandwidth=link * 1e9 * REACHED_BANDWIDTH,
    )


GPUS = {
    "laptop-8gb": _gpu("RTX 4060 Laptop, 8 GB", 8.0, 0.256, 60.0, 16.0),
    "t4": replace(_gpu("T4, 16 GB", 15.8, 0.320, 65.0, 16.0), has_bfloat16=False),
    "24gb": _gpu("RTX 4090, 24 GB", 24.0, 1.008, 165.0, 32.0),
    "80gb": _gpu("H100 SXM, 80 GB", 80.0, 3.35, 989.0, 64.0),
}
"""NVIDIA's data sheets: memory, bandwidth, dense half-precision tensor arithmetic with fp32
accumulation, PCIe one way. The laptop's arithmetic depends on its power limit."""


def measure_cpu(
    dtype: torch.dtype, hidden: int, inner: int, clock: Clock = time.perf_counter
) -> Hardware:
    """Measure this CPU with torch's current number of threads: products, copies, noise, hashing.

    Args:
        dtype: dtype of the products.
        hidden: number of inputs of the weights.
        inner: number of outputs of the weights.
        clock: returns seconds since any fixed time.
    """
    available, load = available_bytes(), MachineLoad()
    drawn = _noise_rate(clock)
    # Drawing noise uses threads, and inference mode applies to the current thread only.
    perturbed = _perturbed_rate(dtype, clock)
    with torch.inference_mode():
        points = tuple((rows, _product_rate(dtype, rows, (hidden, inner), clock)) for rows in ROWS)
        return Hardware(
            name=f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
            on_gpu=False,
            memory_bytes=available,
            host_bytes=available,
            bandwidth=_copy_rate(clock),
            products={name_of(dtype): points},
            operation_s=_operation_s(clock),
            noise_per_s=drawn,
            perturbed_per_s=perturbed,
            elementwise_per_s={name_of(dtype): _elementwise_rate(dtype, inner, clock)},
            hashed_per_s=_hash_rate(clock),
            used_by_others=load.share_of_others(),
        )


def memory_limits(*, on_gpu: bool, device_bytes: float, host_bytes: float) -> Hardware:
    """Describe a machine by its memory alone, to compute what fits."""
    return Hardware(
        name="this machine",
        on_gpu=on_gpu,
        memory_bytes=device_bytes,
        host_bytes=host_bytes,
        bandwidth=math.inf,
        products={},
        operation_s=0.0,
        noise_per_s=math.inf,
        perturbed_per_s=math.inf,
        elementwise_per_s={},
        hashed_per_s=math.inf,
    )


def _product_rate(dtype: torch.dtype, rows: int, sizes: tuple[int, int], clock: Clock) -> float:
    hidden, inner = sizes
    each = hidden * inner * dtype.itemsize
    flops = 2 * rows * hidden * inner
    # Products of many rows reuse a weight, so the time of reading it does not matter.
    count = max(2, min(math.ceil(OUT_OF_CACHE / each), math.ceil(MEASURED_FLOPS / flops)))
    weights = [torch.full((inner, hidden), 0.01, dtype=dtype) for _ in range(count)]
    inputs = torch.full((rows, hidden), 0.01, dtype=dtype)

    def products() -> None:
        for weight in weights:
            torch.mm(inputs, weight.t())

    return flops * count / _seconds(products, clock)


def _copy_rate(clock: Clock) -> float:
    source = torch.zeros(COPIED_BYTES // 4)
    target = torch.zeros_like(source)
    return 2 * COPIED_BYTES / _seconds(lambda: target.copy_(source), clock)


def _operation_s(clock: Clock) -> float:
    small = torch.zeros(16, 16)

    def operations() -> None:
        for _ in range(CALL_OPERATIONS):
            torch.add(small, small)

    return _seconds(operations, clock) / CALL_OPERATIONS


def _noise_rate(clock: Clock) -> float:
    return NUMBERS / _seconds(lambda: noise.draw_noise_rows(0, 0, (0,), "estimate", NUMBERS), clock)


def _perturbed_rate(dtype: torch.dtype, clock: Clock) -> float:
    center, out = torch.zeros(NUMBERS), torch.zeros(NUMBERS, dtype=dtype)
    stream = NoiseStream(0, 0, "estimate")
    return NUMBERS / _seconds(lambda: write_perturbed(stream, 0, 0.1, center, out), clock)


def _elementwise_rate(dtype: torch.dtype, inner: int, clock: Clock) -> float:
    """Time one activation, one sum and one product of 64 rows."""
    left = torch.full((64, inner), 0.5, dtype=dtype)
    right = left.clone()

    def operations() -> None:
        functional.silu(left)
        torch.add(left, right)
        torch.mul(left, right)

    return 3 * left.numel() / _seconds(operations, clock)


def _hash_rate(clock: Clock) -> float:
    data = bytes(HASHED_BYTES)
    return HASHED_BYTES / _seconds(lambda: hashlib.sha256(data).digest(), clock)


def _seconds(work: Callable[[], object], clock: Clock) -> float:
    """Return the mean seconds of a call, after a call to warm up."""
    work()
    begun, done = clock(), 0
    while (passed := clock() - begun) < MEASURED_S or done < FEWEST_CALLS:
        work()
        done += 1
    return max(passed / done, 1e-9)


def available_bytes() -> float:
    """Return the available host memory, including swap; infinity if unknown.

    On Linux it is the smaller of the kernel's value and the rest of a container's limit.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    sizes = {
        name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":") for line in lines)
    }
    available = sizes.get("MemAvailable", math.inf) + sizes.get("SwapFree", 0)
    return float(min(available, _left_in_container()))


def _left_in_container() -> float:
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        statistic = (group / "memory.stat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return math.inf
    if limit == "max":
        return math.inf
    reclaimable = int(statistic[statistic.index("inactive_file") + 1])
    return float(max(0, int(limit) - used + reclaimable))
