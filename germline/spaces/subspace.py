"""Subspace: theta is coordinates in a random subspace of all selected linear layers together.

With coordinates z_1 .. z_d, every selected layer W `[out, in]` becomes

    (1)  W + unit_W / sqrt(d) * sum_k z_k a_k b_k^T        a_k, b_k standard normal, fixed

so one coordinate changes every layer at once, along a different rank-1 direction in each. However
large the model is, d numbers are searched: few enough for a full covariance (`strategy.kind=cma`),
and the smallest d that learns a task measures how many numbers the task needs (intrinsic dimension:
Li et al. 2018, arXiv 1804.08838; Aghajanyan et al. 2020, arXiv 2012.13255).

- Sigma has the meaning it has in `low_rank`: with z of standard deviation sigma, the weights of a
  layer change by sigma times `strategy.sigma_unit` (of that layer), root mean square, for any d.
- The directions follow from the run seed and the canonical names of the layers alone: a_k is the
  noise of direction k in stream `<name>/subspace/a` (generation 0), b_k in `<name>/subspace/b`. So
  the subspace of 8 dimensions lies in that of 16, and a replay needs only the seed.

Deviation: the papers draw dense or Fastfood projections of all weights; rank-1 directions let a
whole population share one batch, and cover the linear layers only.

By default 256 coordinates are searched: on nano countdown 64 stop at 79 % of what `low_rank`
reaches, and 256 reach 98 % and more (`docs/methods.md`).

Limit: the directions of a layer are d (out + in) numbers in the serving dtype, once for all
members, and as many products per token; that is more than the layer itself above
d = out in / (out + in).
"""

import math
from collections.abc import Mapping, Sequence

import torch

from germline import config, noise
from germline.spaces.base import BaseModel, CoordinateSpace, MatrixDirections
from germline.spaces.sigma_units import measure_unit
from germline.spaces.tensor_selection import select_linear
from germline.types import TensorInfo

COORDINATES = "subspace.coordinates"
"""Canonical name of z: frozen, because it names noise."""


class Subspace(CoordinateSpace):
    """Coordinates along random rank-1 directions in every selected layer."""

    def __init__(self, section: config.Subspace, run_seed: int) -> None:
        super().__init__()
        self.section = section
        self.run_seed = run_seed
        self._dimension = section.dimension
        self._units: dict[str, float] = {}

    def begin(self, base: BaseModel) -> Mapping[TensorInfo, torch.Tensor]:
        """Choose the layers; the coordinates start at 0, which is the base model."""
        self.matrices = select_linear(base.tensors, self.section)
        weights = sum(math.prod(matrix.shape) for matrix in self.matrices)
        dimension = min(self.section.dimension, weights)
        if base.weights:
            self._units = {
                matrix.name: measure_unit(base.sigma_unit, matrix.name, base.weights[matrix.name])
                for matrix in self.matrices
            }
        self._dimension = dimension
        return {TensorInfo(COORDINATES, (dimension,), "coordinates", None): torch.zeros(dimension)}

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the coordinates."""
        return tuple(tensor for tensor in tensors if tensor.name == COORDINATES)

    def searched_shapes(self, tensors: Sequence[TensorInfo]) -> list[tuple[int, ...]]:
        """Return the shape of z."""
        return [(self.section.dimension,)]

    def directions(self, matrix: TensorInfo) -> MatrixDirections:
        """Draw the directions of a layer, fp32; a carries unit / sqrt(d) of equation (1)."""
        out, into = matrix.out_in_features
        scale = self._units.get(matrix.name, 1.0) / math.sqrt(self._dimension)
        a = self._drawn(f"{matrix.name}/subspace/a", out).mul_(scale)
        return MatrixDirections(COORDINATES, a.T, self._drawn(f"{matrix.name}/subspace/b", into).T)

    def unit(self, tensor: TensorInfo, base: BaseModel, start: Mapping[str, torch.Tensor]) -> float:
        """Return 1: the units of the layers, which differ, are factors of their directions."""
        return 1.0

    def _drawn(self, name: str, size: int) -> torch.Tensor:
        rows = noise.draw_noise_rows(self.run_seed, 0, range(self._dimension), name, size)
        return torch.from_numpy(rows)
