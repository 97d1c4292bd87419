"""Separable CMA-ES: CMA-ES whose covariance is a diagonal, for many more numbers.

Equations (1) to (5) of `strategies.cma` with C a diagonal: a variance for every searched number, no
covariances. It learns in fewer generations, as c_mu can be larger by (d + 2) / 3, and costs some
passes over the population. It does not learn correlations between the numbers. Source: Ros and
Hansen 2008 (PPSN X); computed by the library `cmaes` (Nomura and Shibata 2024, arXiv 2402.01373).

Deviations: only the better half has weights (no active update, as in the library).
`covariance_rate` multiplies c_1 and c_mu; 0 adapts the step size alone.

Limit: several copies of the population are in memory, 8 bytes a number: with d = 1,000,000 and its
45 members up to 2 GB, here and in every engine that mirrors the search.
"""

import numpy as np
from cmaes import SepCMA

from germline.strategies.cma_base import CmaSearch


class SeparableCovarianceAdaptation(CmaSearch):
    """CMA-ES with a diagonal covariance matrix."""

    LARGEST = 1_000_000

    def begin(self, dimension: int) -> SepCMA:
        """Return the library's optimizer, its mean at 0."""
        return SepCMA(
            mean=np.zeros(dimension),
            sigma=self.config.sigma,
            seed=0,  # replaced before every draw
            population_size=self.config.population,
        )
