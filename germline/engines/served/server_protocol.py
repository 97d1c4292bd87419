"""What an inference engine must be able to do for its members: the seam of vLLM and SGLang.

A server holds a serving copy of the weights and plays members on it. How members stand there
(adapters in one batch, tensors written one member after another) is its own affair; the modules
beside this one work out what each of them is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from germline.engines.master_weights import Masters
from germline.types import Decoding, MeanUpdate, Perturbation, Update

Tokens = Sequence[int]


@dataclass(frozen=True)
class SamplingRequest:
    """How tokens are chosen, as a server needs to be told.

    Attributes:
        seeds: of each prompt's luck, below 2^63; the same for all members, so that those who agree
            about the distribution write the same.
        end_ids: tokens that end a text, in ascending order; they are part of what comes back.
    """

    decoding: Decoding
    seeds: tuple[int, ...]
    end_ids: tuple[int, ...]


@runtime_checkable
class InferenceServer(Protocol):
    """An inference engine that plays members of the population."""

    def begin(self, masters: Masters) -> None:
        """Make sure that what is served is the base model of these masters, and serve the center.

        Raises:
            GermlineError: it serves another model, or cannot serve members of this space.
        """

    def generate(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        sampling: SamplingRequest,
    ) -> list[list[Tokens]]:
        """Let every member (None: the center) go on from every prompt: `[members][prompts]`.

        What comes back may go on behind a stop string: it is cut by `completion_decoder.py`.

        Raises:
            EngineLost: the server is gone, also after it was asked again for a while.
        """

    def log_probabilities(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        written: Sequence[Sequence[Tokens]],
    ) -> list[list[Sequence[float]]]:
        """Return how likely members find each token of `written[members][prompts]`: its log.

        Of the plain distribution, whatever temperature is played with.

        Raises:
            EngineLost: the server is gone.
        """

    def apply(self, update: Update | MeanUpdate) -> None:
        """Serve the center after an update, by which the masters have moved already."""

    def refresh(self) -> None:
        """Serve the masters as they are: they were changed otherwise than by an update."""

    def close(self) -> None:
        """End what was started for this run; a server of the user's own is left as it was found."""
