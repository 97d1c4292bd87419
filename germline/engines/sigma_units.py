"""What sigma and learning rate are multiples of, tensor by tensor, as `strategy.sigma_unit` says.

    constant    1: sigma is in weight units
    mean_abs    mean |W| of the starting weights
    std         standard deviation of the starting weights
    rms         root mean square of the starting weights

An adapter has the unit of the layer beside which it stands, and coordinates what their space says.
With `rms` sigma is a share of every tensor, so that multiplying one layer and dividing the next
changes nothing about a search:

    bias of zeros    unit of the weight of the same module
    A                root mean square of the starting A, or 1 / sqrt(in) where that is 0
    B                rms(W) / (scale sqrt(rank) unit(A)): noise of B moves scale B A by sigma rms(W)
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from germline.protocols import AdapterSpace, CoordinateSpace, Space
from germline.types import GermlineError, TensorInfo

PIECE = 1 << 20
"""Numbers squared at once."""


def tensor_unit(
    info: TensorInfo,
    sigma_unit: str,
    tensors: Mapping[str, Tensor],
    adapted: Sequence[TensorInfo],
    space: Space | None,
) -> float:
    """Return the unit of one searched tensor.

    Args:
        info: the tensor.
        sigma_unit: as in the config.
        tensors: all starting tensors by name.
        adapted: the layers beside which adapters stand.
        space: what is searched.

    Raises:
        GermlineError: the tensor has no size to measure.
    """
    if isinstance(space, CoordinateSpace):
        return space.unit(info)
    layer = next((one for one in adapted if info.name in one.adapter_names), None)
    if layer is None:
        name = _measured_for(info, tensors) if sigma_unit == "rms" else info.name
        return measure_unit(sigma_unit, info.name, tensors[name])
    if sigma_unit != "rms":
        return measure_unit(sigma_unit, layer.name, tensors[layer.name])
    assert isinstance(space, AdapterSpace)
    a = tensors[layer.adapter_names[0]]
    of_a = _rms(a) or 1 / math.sqrt(a.shape[1])
    if info.name == layer.adapter_names[0]:
        return of_a
    of_layer = measure_unit(sigma_unit, layer.name, tensors[layer.name])
    return of_layer / (abs(space.scale) * math.sqrt(space.rank) * of_a)


def measure_unit(sigma_unit: str, name: str, tensor: Tensor) -> float:
    """Measure a tensor.

    Raises:
        GermlineError: it has no size: it would never move.
        ValueError: there is no such unit.
    """
    if sigma_unit == "constant":
        return 1.0
    if sigma_unit == "rms":
        unit = _rms(tensor)
    elif sigma_unit in ("mean_abs", "std"):
        values = tensor.detach().cpu().double().numpy()
        unit = float(np.abs(values).mean() if sigma_unit == "mean_abs" else values.std())
    else:
        raise ValueError(f"{sigma_unit!r} is no unit of sigma; a config says `search.unit`")
    if not unit > 0:
        raise GermlineError(
            f"strategy.sigma_unit={sigma_unit}: {name} has {sigma_unit} {unit}, so it would never "
            "move: exclude it (space.exclude) or use sigma_unit=constant"
        )
    return unit


def _measured_for(info: TensorInfo, tensors: Mapping[str, Tensor]) -> str:
    """Name the tensor whose size counts: of a bias of zeros, the weight of the same module."""
    weight = info.name.removesuffix("bias") + "weight"
    zeros = info.kind == "bias" and not tensors[info.name].any()
    return weight if zeros and weight in tensors else info.name


def _rms(tensor: Tensor) -> float:
    """Return the root mean square, by pieces: a copy of an embedding in fp64 is 1 GB and more."""
    pieces = tensor.detach().flatten().split(PIECE)
    total = math.fsum(_sum_of_squares(one) for one in pieces)
    return math.sqrt(total / tensor.numel())


def _sum_of_squares(piece: Tensor) -> float:
    values = piece.cpu().to(torch.float64, copy=True).numpy()
    return float(np.square(values, out=values).sum())
