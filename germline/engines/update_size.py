"""The size of an update in units of the rounding of the serving dtype, on a sample of the weights.

With the step d of one tensor, the weights w after it, and the spacing ulp(w) of the serving dtype
at w,

    (1)  in roundings = rms(d) / rms(ulp(w))
    (2)  moved = share of the weights for which cast(w) != cast(w - d)
    (3)  rank = min(r P, rows, columns)      with P effective directions of rank r each

Below one rounding most served weights do not change in this update; the fp32 masters keep the
difference, and the steps add up there.

Tensors of more than `SAMPLE` numbers are measured on an even sample, so that the time and memory of
a large model's update hardly grow. Spacings are taken after the step, where a weight that was zero
has one. Coordinates are not measured: they are not served, and around zero they have no meaningful
spacing.
"""

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from germline.engines.master_weights import Masters
from germline.signal_metrics import effective_directions
from germline.types import MeanUpdate, TensorInfo, Update, UpdateSize

SAMPLE = 4096
"""Numbers measured in each tensor: a share is then known to about a percent."""


class UpdateSizeMeter:
    """Compares a sample of the weights before and after an update, in units of the served dtype."""

    def __init__(self, masters: Masters, dtype: torch.dtype) -> None:
        self._masters = masters
        self._dtype = dtype
        self._infos = [info for info in masters.searched if info.kind != "coordinates"]
        self._before = self._samples()

    def read(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Measure the step since the meter was made; None where only coordinates are searched."""
        if not self._infos:
            return None
        before, after = self._before, self._samples()
        squares = self._means((after.double() - before.double()).square())
        roundings = np.sqrt(squares / self._means(_spacing(after, self._dtype).square()))
        moved = self._means((after.to(self._dtype) != before.to(self._dtype)).double())
        sizes = [math.prod(info.shape) for info in self._infos]
        return UpdateSize(
            rms=math.sqrt(float(np.average(squares, weights=sizes))),
            in_roundings=float(np.median(roundings)),
            least_in_roundings=float(roundings.min()),
            moved=float(np.average(moved, weights=sizes)),
            rank=self._rank(update),
        )

    def _samples(self) -> Tensor:
        """Copy the samples of all tensors to the host, at once."""
        tensors = self._masters.tensors
        parts = [_sample(tensors[info.name], info) for info in self._infos]
        self._sizes = [len(part) for part in parts]
        return torch.cat(parts).cpu() if parts else torch.empty(0)

    def _means(self, values: Tensor) -> Float64[np.ndarray, " tensors"]:
        """Average over the sample of each tensor."""
        starts = np.cumsum([0, *self._sizes[:-1]])
        sums: np.ndarray = np.add.reduceat(values.numpy(), starts)
        return sums / self._sizes

    def _rank(self, update: Update | MeanUpdate) -> float | None:
        """Return the effective rank of the step in the median matrix: equation (3)."""
        space = self._masters.space
        rank = space.direction_rank if space else None
        if rank is None or not isinstance(update, Update):
            return None
        directions = effective_directions(update.coefficients)
        if directions is None:
            return None
        return float(np.median([min(rank * directions, *info.shape) for info in self._infos]))


def _sample(tensor: Tensor, info: TensorInfo) -> Tensor:
    """View every n-th number, with a step n that visits all columns in turn."""
    step = -(-tensor.numel() // SAMPLE)
    columns = info.shape[-1] if info.shape else 1
    while step > 1 and math.gcd(step, columns) > 1:
        step += 1
    return tensor.reshape(-1)[::step]


def _spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the distance to the next number of a dtype, in fp64; at 0, the smallest number."""
    limits = torch.finfo(dtype)
    _mantissas, exponents = np.frexp(values.numpy())
    spacing = np.where(values == 0, 0.0, np.ldexp(limits.eps / 2, exponents))
    return torch.from_numpy(np.maximum(spacing, limits.smallest_normal * limits.eps))
