"""The singular values of a matrix: stable rank, the exponent of their power law, and subspaces.

    (1)  stable rank = |M|^2 / s_1^2            Frobenius norm, largest singular value
    (2)  alpha = 1 + n / sum_i ln(l_i / l_min)  over the n eigenvalues l_i >= l_min of M^T M
    (3)  angle between the spans of the first singular vectors, the largest principal angle

(2) is the maximum-likelihood exponent of a power law, with the l_min of the smallest distance of
Kolmogorov and Smirnov (Clauset, Shalizi and Newman 2009, SIAM Review 51); Martin and Mahoney (2021,
JMLR 22) and their WeightWatcher call it the alpha of a layer.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

MOST = 1 << 26
"""Numbers of the largest matrix that has a spectrum: 256 MB in fp32."""

SUBSPACE = 8
"""Singular vectors whose span is compared: equation (3)."""

FEWEST = 10
"""Eigenvalues of the shortest tail that a power law is fitted to."""


def spectrum(
    start: Float32[Tensor, "rows columns"], end: Float32[Tensor, "rows columns"], widest: int
) -> Mapping[str, float]:
    """Return the stable rank of a change, the alpha before and after, and the angle in degrees.

    Matrices that are wider than `widest` have the first only, and vectors nothing.
    """
    narrow = min(start.shape)
    if narrow < 2:
        return {}
    found = {"stable_rank": stable_rank(end - start)}
    if not SUBSPACE < narrow <= widest:
        return found
    from scipy.linalg import subspace_angles

    before, after = (eigenvalues_and_vectors(matrix) for matrix in (start, end))
    spans = (vectors[:, :SUBSPACE].numpy() for _, vectors in (before, after))
    return {
        **found,
        "alpha_before": power_law_exponent(before[0]),
        "alpha_after": power_law_exponent(after[0]),
        "angle": float(np.degrees(subspace_angles(*spans).max())),
    }


def eigenvalues_and_vectors(matrix: Float32[Tensor, "rows columns"]) -> tuple[np.ndarray, Tensor]:
    """Return the eigenvalues of M^T M (or M M^T, if smaller), the largest first, with vectors."""
    narrow = (matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T).double()
    values, vectors = torch.linalg.eigh(narrow.T @ narrow)
    return values.flip(0).clamp(min=0).numpy(), vectors.flip(1)


def stable_rank(matrix: Float32[Tensor, "rows columns"]) -> float:
    """Return the stable rank (1); NaN of a matrix of zeros."""
    if not matrix.any():
        return math.nan
    from scipy.sparse.linalg import svds

    start = np.random.default_rng(0).standard_normal(min(matrix.shape)).astype(np.float32)
    largest = svds(matrix.numpy(), k=1, v0=start, return_singular_vectors=False).item()
    return float((matrix.norm() / largest) ** 2)


def power_law_exponent(eigenvalues: Float64[np.ndarray, " n"]) -> float:
    """Return alpha (2); NaN of fewer than `FEWEST` positive values."""
    values = np.sort(eigenvalues[eigenvalues > eigenvalues.max(initial=0) * 1e-12])
    best, alpha = math.inf, math.nan
    for first in range(len(values) - FEWEST + 1):
        tail = values[first:]
        logs = np.log(tail / tail[0])
        if not logs.any():
            continue
        found = 1 + len(tail) / logs.sum()
        fitted = 1 - np.exp(logs * (1 - found))
        steps = np.arange(len(tail) + 1) / len(tail)
        distance = max(np.abs(fitted - steps[:-1]).max(), np.abs(fitted - steps[1:]).max())
        if distance < best:
            best, alpha = distance, found
    return float(alpha)
