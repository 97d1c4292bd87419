"""Singular values: theta is offsets of the largest singular values of chosen matrices.

A matrix M = U diag(s) V^T, largest values first, plays as

    (1)  M + U_k diag(z) V_k^T        z `[k]` is searched; U, s and V stay as they were at the start

M is a linear layer's weight; or, where `space.init_adapter` names a PEFT adapter, its A and its B,
which
are served beside the frozen model: this is ESSA (arXiv 2507.04453), made for an adapter that was
fine-tuned first, and for covariances (`strategy.kind=sep_cma` or `cma`) over its few numbers.

- Sigma means what it means in other spaces: the unit of z is sqrt(out in / k) times
  `strategy.sigma_unit`, so that z of standard deviation sigma changes M by sigma units per element,
  root mean square. With `mean_abs` or `std` that is a share of the values themselves, as sqrt(out
  in) times the root mean square of M is the norm of s. The unit is measured on M: an adapter's A
  and B have their own.
- The journal and the digest know z, not U and V: these are worked out when a model is loaded, on
  the CPU in fp64 (LAPACK's gesdd) and rounded to fp32. A pair of vectors is unique up to a sign
  that cancels in (1), so other machines agree but for the last bits, unless two singular values
  are equal to rounding.

Deviations from ESSA: offsets start at 0 (the given adapter) and are free to make a singular value
negative; nothing is quantized.

Limits: U and V are held in fp32 on the CPU, 4 k (out + in) bytes a matrix, and once more on the
device in the serving dtype where that is another. One fp64 decomposition of a square matrix takes
0.6 s on one core for a side of 1024, and grows with its cube.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from germline import config
from germline.protocols import BaseModel, MatrixDirections
from germline.spaces.dense_noise import DenseNoise
from germline.spaces.peft_files import StoredAdapter, read_adapter
from germline.spaces.tensor_selection import no_adapted_layers_error, select_linear
from germline.types import GermlineError, TensorInfo

DEFAULT = config.Singular.model_fields["top_k"].default
"""Values searched where nobody asked for a number: that a matrix has fewer is then no mistake."""


class Singular(DenseNoise):
    """Offsets of the top singular values of linear layers, or of an adapter's factors.

    Attributes:
        matrices: what is taken apart; known once it has begun.
        scale: what B A of a given adapter is multiplied with.
    """

    def __init__(self, section: config.Singular) -> None:
        self.section = section
        self.scale = 1.0
        self.matrices: tuple[TensorInfo, ...] = ()
        self._directions: dict[str, MatrixDirections] = {}
        self._units: dict[str, float] = {}

    def begin(self, base: BaseModel) -> Mapping[TensorInfo, torch.Tensor]:
        """Take the matrices apart; the offsets start at 0.

        Raises:
            GermlineError: nothing is selected, `top_k` exceeds a matrix, a matrix is all zeros, or
                the given adapter is of another model.
        """
        layers = select_linear(base.tensors, self.section)
        frozen: dict[TensorInfo, torch.Tensor] = {}
        if self.section.init_adapter is None:
            chosen = {layer: base.weights[layer.name] for layer in layers}
        else:
            frozen, chosen = self._given(
                read_adapter(Path(self.section.init_adapter)), base, layers
            )
        self.matrices = tuple(chosen)
        offsets = [self._apart(matrix, weight, base) for matrix, weight in chosen.items()]
        return frozen | {info: torch.zeros(info.shape) for info in offsets}

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the offsets."""
        return tuple(tensor for tensor in tensors if tensor.name in self._units)

    def directions(self, matrix: TensorInfo) -> MatrixDirections:
        """Return U_k and V_k of a matrix."""
        return self._directions[matrix.name]

    def unit(self, coordinates: TensorInfo) -> float:
        """Return sqrt(out in / k) times the unit of the matrix."""
        return self._units[coordinates.name]

    def _given(
        self, stored: StoredAdapter, base: BaseModel, layers: Sequence[TensorInfo]
    ) -> tuple[dict[TensorInfo, torch.Tensor], dict[TensorInfo, torch.Tensor]]:
        """Return the whole adapter, and its factors beside the selected layers."""
        adapter = dict(stored.beside(base))
        self.scale = stored.alpha / stored.rank
        wanted = {name for layer in layers for name in layer.adapter_names}
        chosen = {info: tensor for info, tensor in adapter.items() if info.name in wanted}
        if not chosen:
            raise no_adapted_layers_error(self.section)
        return adapter, chosen

    def _apart(self, matrix: TensorInfo, weight: torch.Tensor, base: BaseModel) -> TensorInfo:
        """Decompose one matrix; describe its offsets."""
        k = self._k(matrix)
        values = weight.detach().cpu().double()
        u, s, v = torch.linalg.svd(values.T if matrix.transposed else values, full_matrices=False)
        if not s[0] > 0:
            raise GermlineError(
                f"space.kind=singular: {matrix.name} is all zeros, so it has no singular "
                "directions: start from an adapter that was trained, or leave it out "
                "(space.exclude)"
            )
        offsets = TensorInfo(
            f"{matrix.name.removesuffix('.weight')}.singular", (k,), "coordinates", matrix.layer
        )
        a, b = u[:, :k].float().contiguous(), v[:k].T.float().contiguous()
        self._directions[matrix.name] = MatrixDirections(offsets.name, a, b)
        natural = math.sqrt(math.prod(matrix.shape) / k)
        self._units[offsets.name] = natural * base.unit(matrix.name, weight)
        return offsets

    def _k(self, matrix: TensorInfo) -> int:
        most, k = min(matrix.shape), self.section.top_k
        if k is None:
            return most
        if k > most and k != DEFAULT:
            raise GermlineError(
                f"space.top_k={k} is above the smaller side of {matrix.name} "
                f"{list(matrix.shape)}: use at most {most}, or top_k=null for all singular values"
            )
        return min(k, most)
