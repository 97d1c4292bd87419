"""CMA-ES: an evolution strategy that learns its step size and the shape of its population.

Members are x_i = m + sigma y_i with y_i ~ N(0, C), and i:N is the i-th best of N. With weights w_i,
y_w = sum_{i <= mu} w_i y_{i:N}, and in the order of the computation,

    (1)  m       <- m + sigma y_w                                            mean of the better half
    (2)  p_sigma <- (1 - c_s) p_sigma + sqrt(c_s (2 - c_s) mu_w) C^{-1/2} y_w    the path of m
    (3)  sigma   <- sigma exp(c_s / d_s (|p_sigma| / E|N(0, I)| - 1))       longer path, larger step
    (4)  p_c     <- (1 - c_c) p_c + h sqrt(c_c (2 - c_c) mu_w) y_w
    (5)  C       <- (1 - c_1 - c_mu sum w) C + c_1 p_c p_c^T + c_mu sum_i w_i y_{i:N} y_{i:N}^T

w_i being negative in (5) for the worse half (active CMA). Source: Hansen 2016 (arXiv 1604.00772),
equations 41 to 47, with its default constants; computed by the library `cmaes` (Nomura and Shibata
2024, arXiv 2402.01373), which minimizes. `lr_adapt` is LRA-CMA-ES (Nomura et al. 2023, arXiv
2304.03473): steps of m, and of sigma^2 C, are scaled by how much of them is signal.

Deviation: `covariance_rate` multiplies c_1 and c_mu; 0 leaves C the identity, and only (3) adapts.

Limits: C has d^2 numbers and is decomposed in every generation, in d^3 operations: measured 0.15 s
of one core for d = 500, 1.0 s for 1,000, 6.9 s and 1.8 GB of memory for 2,000.
"""

from typing import cast

import numpy as np
from cmaes import CMA
from jaxtyping import Float64

from germline.config import Cma
from germline.strategies.cma_base import CmaSearch


class CovarianceMatrixAdaptation(CmaSearch):
    """CMA-ES with a full covariance matrix."""

    LARGEST = 2_000

    def begin(self, dimension: int) -> CMA:
        """Return the library's optimizer, its mean at 0."""
        config = cast(Cma, self.config)
        return _Cma(
            mean=np.zeros(dimension),
            sigma=config.sigma,
            seed=0,  # replaced before every draw
            population_size=config.population,
            lr_adapt=config.lr_adapt,
        )


class _Cma(CMA):
    """The library's optimizer, drawing the same members at a d-th of the cost."""

    def _sample_solution(self) -> Float64[np.ndarray, " dimension"]:
        """Draw x = m + sigma B D z without the library's product of B and a matrix of D.

        A product with a diagonal has one term per sum, so it is that of the columns, bit for bit.
        """
        b, d = self._eigen_decomposition()
        z = self._rng.randn(self._n_dim)
        return self._mean + self._sigma * (b * d).dot(z)
