"""An engine around another, to change what is done with it: everything else is passed on."""

from collections.abc import Sequence
from pathlib import Path

from germline.protocols import Engine, MasterWeights, Members, Texts
from germline.signal_types import UpdateSize
from germline.types import Completion, Decoding, Example, MeanUpdate, Perturbation, Update


class EngineWrapper:
    """Passes everything on to the engine inside; subclasses say what is done otherwise."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    @property
    def weights(self) -> MasterWeights:
        """The masters of the engine inside."""
        return self.inner.weights

    def generate(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        decoding: Decoding,
    ) -> list[list[Completion]]:
        """Let every member answer every example."""
        return self.inner.generate(members, examples, decoding)

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Return how likely each member finds each token of its completions, as logarithms."""
        return self.inner.log_probabilities(members, examples, completions)

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update, and say how far the masters moved."""
        return self.inner.apply(update)

    def refresh(self) -> None:
        """Make the serving copy the rounded masters again."""
        self.inner.refresh()

    def save_model(self, folder: Path) -> None:
        """Write theta as a Hugging Face folder."""
        self.inner.save_model(folder)

    def save_adapter(self, folder: Path) -> None:
        """Write theta as a PEFT adapter."""
        self.inner.save_adapter(folder)
