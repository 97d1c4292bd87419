"""An engine that only moves masters: what replay and export need of one that plays elsewhere.

It is made without the inference engine, which may not even be installed.
"""

from collections.abc import Sequence

import torch

from germline.config import Config
from germline.engines.dtypes import serving_dtype
from germline.engines.master_weights import Masters
from germline.engines.pretrained import PretrainedModel
from germline.engines.served.engine import ServedEngine
from germline.engines.served.server_protocol import SamplingRequest, Tokens
from germline.optimizers import AscentOptimizer
from germline.protocols import Space
from germline.types import GermlineError, MeanUpdate, Perturbation, Update


class NoServer:
    """A server that is not there; all it does is say so."""

    def begin(self, masters: Masters) -> None:
        """Do nothing: nothing is served."""

    def generate(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        sampling: SamplingRequest,
    ) -> list[list[Tokens]]:
        """Refuse to play."""
        raise self._refusal()

    def log_probabilities(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        written: Sequence[Sequence[Tokens]],
    ) -> list[list[Sequence[float]]]:
        """Refuse to read."""
        raise self._refusal()

    def apply(self, update: Update | MeanUpdate) -> None:
        """Do nothing: the masters have moved."""

    def refresh(self) -> None:
        """Do nothing: nothing is served."""

    def close(self) -> None:
        """Do nothing: nothing was started."""

    def _refusal(self) -> GermlineError:
        return GermlineError("these weights were rebuilt to be written, not to be played")


def make_masters_only_engine(
    config: Config, pretrained: PretrainedModel, space: Space | None, optimizer: AscentOptimizer
) -> ServedEngine:
    """Make the masters of a run, and no serving copy."""
    on_gpu = torch.cuda.is_available()
    dtype = serving_dtype(
        getattr(config.engine, "dtype", "auto"), pretrained.stored_dtype, on_gpu=on_gpu
    )
    unit = config.search.unit
    return ServedEngine(pretrained, space, optimizer, unit, NoServer(), dtype)
