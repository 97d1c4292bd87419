"""Singular values: theta is offsets of the largest singular values of the selected linear layers.

A weight M = U diag(s) V^T, largest values first, becomes

    (1)  M + U_k diag(z) V_k^T        z `[k]` is searched; U, s and V are those of the start

The numbers are few enough for covariances (`strategy.kind=sep_cma` or `cma`). Source: ESSA (arXiv
2507.04453).

- Sigma has the meaning it has in other spaces: the unit of z is sqrt(out in / k) times
  `strategy.sigma_unit`, so that z of standard deviation sigma changes M by sigma units per element,
  root mean square. With `mean_abs` or `std` that is a share of the values themselves, as sqrt(out
  in) times the root mean square of M is the norm of s.
- Journal and digest hold z, not U and V: these are computed when a model is loaded, on the CPU in
  fp64 (LAPACK's gesdd) and rounded to fp32. A pair of vectors is unique up to a sign that cancels
  in (1), so other machines agree except for the last bits, unless two singular values are equal to
  rounding.

Deviations from ESSA: M is the weight itself and not a factor of an adapter that was fine-tuned
first; offsets start at 0 and may make a singular value negative; nothing is quantized.

Limits: U and V are stored in fp32 on the CPU, 4 k (out + in) bytes a matrix, and once more on the
device in the serving dtype where that differs. One fp64 decomposition of a square matrix takes
0.6 s on one core for a side of 1024, and grows with its cube.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from germline import config
from germline.spaces.base import BaseModel, CoordinateSpace, MatrixDirections
from germline.spaces.sigma_units import measure_unit
from germline.spaces.tensor_selection import select_linear
from germline.types import TensorInfo


class Singular(CoordinateSpace):
    """Offsets of the top singular values of linear layers, or of an adapter's factors."""

    def __init__(self, section: config.Singular, run_seed: int = 0) -> None:
        super().__init__()
        self.section = section
        self._directions: dict[str, MatrixDirections] = {}
        self._units: dict[str, float] = {}

    def begin(self, base: BaseModel) -> Mapping[TensorInfo, torch.Tensor]:
        """Decompose the matrices; the offsets start at 0."""
        self.matrices = select_linear(base.tensors, self.section)
        offsets = [self._decompose(matrix, base) for matrix in self.matrices]
        return {info: torch.zeros(info.shape) for info in offsets}

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the offsets."""
        return tuple(tensor for tensor in tensors if tensor.name in self._units)

    def searched_shapes(self, tensors: Sequence[TensorInfo]) -> list[tuple[int, ...]]:
        """Return the shapes of the offsets."""
        return [self._shape(layer) for layer in select_linear(tensors, self.section)]

    def directions(self, matrix: TensorInfo) -> MatrixDirections:
        """Return U_k and V_k of a matrix."""
        return self._directions[matrix.name]

    def unit(self, tensor: TensorInfo, base: BaseModel, start: Mapping[str, torch.Tensor]) -> float:
        """Return sqrt(out in / k) times the unit of the matrix."""
        return self._units[tensor.name]

    def _decompose(self, matrix: TensorInfo, base: BaseModel) -> TensorInfo:
        """Decompose one matrix; describe its offsets."""
        (k,), weight = self._shape(matrix), base.weights[matrix.name]
        values = weight.detach().cpu().double()
        u, _, v = torch.linalg.svd(values.T if matrix.transposed else values, full_matrices=False)
        offsets = TensorInfo(
            f"{matrix.name.removesuffix('.weight')}.singular", (k,), "coordinates", matrix.layer
        )
        a, b = u[:, :k].float().contiguous(), v[:k].T.float().contiguous()
        self._directions[matrix.name] = MatrixDirections(offsets.name, a, b)
        natural = math.sqrt(math.prod(matrix.shape) / k)
        self._units[offsets.name] = natural * measure_unit(base.sigma_unit, matrix.name, weight)
        return offsets

    def _shape(self, matrix: TensorInfo) -> tuple[int]:
        """Return the number of offsets of a matrix, as their shape."""
        return (min(self.section.top_k or min(matrix.shape), *matrix.shape),)
