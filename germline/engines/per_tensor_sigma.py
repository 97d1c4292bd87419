"""A sigma for every tensor, which follows the natural gradient of its own noise.

Members of sigma play sigma * scale_t * eps on tensor t, in the unit of the tensor. With the
coefficients s_k of a `SigmaUpdate`, each scale moves, from 1 before the first update, by

    (1)  scale_t <- scale_t * exp(sum_k s_k (|eps_k|^2 / d_t - 1)),  cut to its limits

where |eps_k|^2 / d_t is the mean square of what direction k drew for the d_t numbers of the tensor.
This is the step of SNES (Wierstra et al. 2014, Natural Evolution Strategies, JMLR 15, section 3.4)
for coordinates that share one sigma: their Fisher information about ln sigma is 2 d_t, so the
natural gradient is the mean of theirs. As there, the step of theta counts in sigma: the unit of the
learning rate is scaled too.

Known limit: by its law, |eps|^2 / d strays from 1 by sqrt(2 / d), so large tensors of dense noise
learn their sigma slowly. Low-rank noise strays much further: its norm is a product of two short
vectors' norms.

The sums are exact (integers), so a replay has the same bits on every machine.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from germline.protocols import AdapterSpace, CoordinateSpace, DenseSpace, LowRankSpace, Space
from germline.schedules import scale_within
from germline.types import SeedPerturbation, SigmaUpdate, TensorInfo, Update

SUFFIX = ".scale"
"""What a state calls the scale of a tensor: its name and this."""

UNITS = 2**32
"""Products are rounded to 1/UNITS and added up as integers: 1e8 of them fit."""

CHUNK = 1 << 20
"""Numbers squared at once."""


class PerTensorSigma:
    """The scales of the searched tensors; none is kept before the first one moves."""

    def __init__(self) -> None:
        self._scales: dict[str, Tensor] = {}

    def of(self, name: str) -> float:
        """Return the scale of a tensor."""
        return float(self._scales[name]) if name in self._scales else 1.0

    def follow(
        self, update: Update, stretch: SigmaUpdate, space: Space, tensor: TensorInfo
    ) -> None:
        """Move the scale of one tensor by one update: equation (1)."""
        members = [
            SeedPerturbation(update.run_seed, update.generation, direction, 1, update.sigma)
            for direction in range(len(stretch.coefficients))
        ]
        squares = noise_mean_squares(space, members, tensor)
        step = sum(s * (one - 1) for s, one in zip(stretch.coefficients, squares, strict=True))
        scale = scale_within(self.of(tensor.name), step, stretch.min, stretch.max)
        self._scales[tensor.name] = torch.tensor([scale], dtype=torch.float32)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the scales by `<tensor>.scale`, sorted."""
        return {f"{name}{SUFFIX}": self._scales[name] for name in sorted(self._scales)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the scales by copies of those given."""
        self._scales = {key.removesuffix(SUFFIX): one.clone() for key, one in state.items()}


def noise_mean_squares(
    space: Space, members: Sequence[SeedPerturbation], tensor: TensorInfo
) -> list[float]:
    """Return the mean square of each direction's unit noise in one tensor, of exact sums.

    Low-rank noise is never made dense: |A B^T|^2 is the sum over pairs of columns p, q of
    (a_p . a_q) (b_p . b_q). Dense noise is drawn one direction after another.
    """
    size = math.prod(tensor.shape)
    if isinstance(space, LowRankSpace):
        a, b = (side.numpy() for side in space.factors(members, tensor))
        pairs = [(p, q) for p in range(space.rank) for q in range(space.rank)]
        return [
            sum(_dot(a[k, :, p], a[k, :, q]) * _dot(b[k, :, p], b[k, :, q]) for p, q in pairs)
            / size
            / UNITS**2
            for k in range(len(members))
        ]
    drawn = (_dense(space, member, tensor) for member in members)
    return [_dot(values, values) / size / UNITS for values in drawn]


def _dense(
    space: Space, member: SeedPerturbation, tensor: TensorInfo
) -> Float32[np.ndarray, " numbers"]:
    if isinstance(space, DenseSpace):
        return space.noise(member, tensor).flatten().numpy()
    assert isinstance(space, AdapterSpace | CoordinateSpace)
    return space.noises([member], tensor)[0].flatten().numpy()


def _dot(left: Float32[np.ndarray, " n"], right: Float32[np.ndarray, " n"]) -> int:
    """Multiply and add up, in 1/UNITS: a float64 holds a product of two fp32 exactly."""
    total = 0
    for start in range(0, len(left), CHUNK):
        part = slice(start, start + CHUNK)
        products = left[part].astype(np.float64) * right[part].astype(np.float64)
        total += int(np.rint(products * UNITS).astype(np.int64).sum())
    return total
