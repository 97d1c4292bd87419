"""What spaces of coordinates share: theta is z, and a frozen matrix M becomes M + A diag(z) B^T.

A subclass chooses `matrices` and their `directions` in `begin`, and says how many coordinates there
are; the noise of a member is dense noise on z.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from germline.spaces.base import DenseSpace, Theta, add_to_matrix
from germline.types import TensorInfo


class MatrixDirections(NamedTuple):
    """The directions of one frozen matrix M `[out, in]`, which becomes M + A diag(z) B^T.

    Attributes:
        coordinates: canonical name of z.
        a: `[out, k]`, fp32.
        b: `[in, k]`, fp32.
    """

    coordinates: str
    a: Tensor
    b: Tensor


class CoordinateSpace(DenseSpace):
    """Coordinates of fixed directions, which all members share.

    Attributes:
        matrices: the matrices that coordinates change; known once the space has begun.
    """

    family = "coordinates"
    searches_weights = False

    def __init__(self) -> None:
        self.matrices: tuple[TensorInfo, ...] = ()

    def directions(self, matrix: TensorInfo) -> MatrixDirections:
        """Return the directions of one of `matrices`, on the CPU."""
        raise NotImplementedError

    def numbers_per_member(self, tensors: Sequence[TensorInfo]) -> int:
        """Count the coordinates."""
        return sum(math.prod(shape) for shape in self.searched_shapes(tensors))

    def changed_weights(self, theta: Theta) -> tuple[TensorInfo, ...]:
        """Return the weights that coordinates change, and those that have an adapter."""
        names = {info.name for info in (*self.matrices, *theta.adapted)}
        return tuple(info for info in theta.base.tensors if info.name in names)

    def apply_coordinates(self, values: dict[str, Tensor]) -> None:
        """Add A diag(z) B^T to every matrix, on the device of the matrix's directions."""
        for matrix in self.matrices:
            directions = self.directions(matrix)
            z = values[directions.coordinates].cpu()
            add_to_matrix(values, matrix, (directions.a * z) @ directions.b.T)
