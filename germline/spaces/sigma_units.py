"""What sigma and learning rate are multiples of, tensor by tensor: a unit times a scale.

The unit is measured once, on the starting weights, as `strategy.sigma_unit` says:

    constant    1: sigma is in weight units
    mean_abs    mean |W|
    std         standard deviation of W
    rms         root mean square of W; of a bias of zeros, that of the weight of its module

The scale of a tensor is 1 unless `strategy.sigma=natural` gives every tensor a sigma of its own.
A member of sigma then adds sigma * unit_t * scale_t * eps to tensor t. With the coefficients s_k of
a `SigmaUpdate`, each scale changes by

    (1)  scale_t <- scale_t * exp(sum_k s_k (|eps_k|^2 / d_t - 1)),  cut to its limits

where |eps_k|^2 / d_t is the mean square of direction k's noise in the d_t numbers of the tensor.
This is the step of SNES (Wierstra et al. 2014, Natural Evolution Strategies, JMLR 15, section 3.4)
for coordinates that share one sigma: their Fisher information about ln sigma is 2 d_t, so the
natural gradient is the mean of theirs. As there, the step of theta counts in sigma: the unit of the
learning rate is scaled too.

Known limit: |eps|^2 / d has a standard deviation of sqrt(2 / d) around 1, so large tensors of dense
noise learn their sigma slowly. Low-rank noise varies much more: its norm is a product of the norms
of two short vectors.

The sums of (1) are exact (integers), so a replay has the same bits on every machine.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from germline.config.schedules import scale_within
from germline.types import GermlineError, SeedPerturbation, SigmaUpdate, TensorInfo, Update

if TYPE_CHECKING:
    from germline.spaces.base import BaseSpace

CHUNK = 1 << 20
"""Numbers squared at once: a copy of an embedding in fp64 is 1 GB and more."""

SUFFIX = ".scale"
"""The scale of a tensor is stored under the tensor's name and this suffix."""

UNITS = 2**32
"""Products are rounded to 1/UNITS and added as integers, of which an int64 holds 1e8."""


def measure_unit(sigma_unit: str, name: str, tensor: Tensor) -> float:
    """Measure a tensor; refuse one of zeros, which would never change."""
    if sigma_unit == "constant":
        return 1.0
    unit = MEASURES[sigma_unit](tensor)
    if not unit > 0:
        raise GermlineError(
            f"strategy.sigma_unit={sigma_unit}: {name} has {sigma_unit} {unit}, so it would never "
            "change: exclude it (space.exclude) or use sigma_unit=constant"
        )
    return unit


def measured_name(info: TensorInfo, tensors: Mapping[str, Tensor]) -> str:
    """Name the tensor that `rms` measures: for a bias of zeros, the weight of the same module."""
    weight = info.name.removesuffix("bias") + "weight"
    zeros = info.kind == "bias" and not tensors[info.name].any()
    return weight if zeros and weight in tensors else info.name


def root_mean_square(tensor: Tensor) -> float:
    """Return the root mean square of all numbers, in fp64."""
    pieces = (piece.cpu().double().numpy() for piece in tensor.detach().flatten().split(CHUNK))
    total = math.fsum(float(np.square(piece).sum()) for piece in pieces)
    return math.sqrt(total / tensor.numel())


MEASURES: Mapping[str, Callable[[Tensor], float]] = {
    "rms": root_mean_square,
    "mean_abs": lambda tensor: float(np.abs(tensor.detach().cpu().double().numpy()).mean()),
    "std": lambda tensor: float(tensor.detach().cpu().double().numpy().std()),
}
"""Units that are measured, by the names of `strategy.sigma_unit`."""


class SigmaScales:
    """The scales of the searched tensors, by `<tensor>.scale`, once they have changed."""

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def of(self, name: str) -> float:
        """Return the scale of a tensor."""
        return float(self.state.get(f"{name}{SUFFIX}", 1.0))

    def apply(
        self, update: Update, sigma_update: SigmaUpdate, space: "BaseSpace", tensor: TensorInfo
    ) -> None:
        """Change the scale of one tensor by one update: equation (1)."""
        members = [
            SeedPerturbation(update.run_seed, update.generation, direction, 1, update.sigma)
            for direction in range(len(sigma_update.coefficients))
        ]
        squares = space.mean_squares(members, tensor)
        terms = zip(sigma_update.coefficients, squares, strict=True)
        step = sum(coefficient * (square - 1) for coefficient, square in terms)
        limits = sigma_update.min, sigma_update.max
        scale = scale_within(self.of(tensor.name), step, *limits)
        self.state[f"{tensor.name}{SUFFIX}"] = torch.tensor([scale], dtype=torch.float32)


def exact_dot(left: Float32[np.ndarray, " n"], right: Float32[np.ndarray, " n"]) -> int:
    """Multiply and add up, in 1/UNITS: a float64 holds a product of two fp32 numbers exactly."""
    total = 0
    for start in range(0, len(left), CHUNK):
        part = slice(start, start + CHUNK)
        products = left[part].astype(np.float64) * right[part].astype(np.float64)
        total += int(np.rint(products * UNITS).astype(np.int64).sum())
    return total


def exact_mean_square(noise: Tensor) -> float:
    """Return the mean square of a tensor of noise."""
    values = noise.flatten().numpy()
    return exact_dot(values, values) / len(values) / UNITS
