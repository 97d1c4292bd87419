"""Sliding-window attention: masks for layers that attend to the last tokens only.

The cache holds every token of a text, so a window is only a mask. Distances are between positions
in the text, not between indices of the cache: there may be padding between a shared prefix and the
rest of a prompt.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from germline.types import GermlineError

FULL, SLIDING = "full_attention", "sliding_attention"


def check_attention_layers(config: PreTrainedConfig) -> None:
    """Check that all layers of a model have full or sliding-window attention.

    Raises:
        GermlineError: names the other kinds of layers.
    """
    unsupported = set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}
    if unsupported:
        raise GermlineError(
            f"model: {config.model_type} has layers of {', '.join(sorted(unsupported))}, and "
            f"engine.kind=inprocess serves {FULL} and {SLIDING} only"
        )


@dataclass
class SlidingWindow:
    """The window of a model over the rows of a batch.

    Attributes:
        size: number of tokens to which a row attends, the newest included.
        everywhere: whether all layers have the window, as in families without kinds of layers.
        places: position in the text of every index of the cache, `[rows, capacity]`.
    """

    size: int
    everywhere: bool
    places: Tensor

    @classmethod
    def of(
        cls, config: PreTrainedConfig, seen: Tensor, device: torch.device
    ) -> "SlidingWindow | None":
        """Return the window; None where the model has none, or all texts are shorter.

        Args:
            config: of the text model.
            seen: False where an index of the cache is padding, `[rows, capacity]`, on the CPU.
            device: of the model.
        """
        kinds = getattr(config, "layer_types", None)
        size = getattr(config, "sliding_window", None)
        if size is None or size >= seen.shape[1] or (kinds is not None and SLIDING not in kinds):
            return None
        return cls(size, kinds is None, (seen.long().cumsum(1) - 1).to(device))

    def keep(self, stay: Tensor) -> None:
        """Keep these rows of the batch."""
        self.places = self.places[stay]

    def masks(self, mask: Tensor, positions: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the mask argument of the model: one for all layers, or one per kind of layer.

        Args:
            mask: of full attention, additive, `[rows, 1, width, length]`.
            positions: of the new tokens, `[rows, width]`.
        """
        rows, length = mask.shape[0], mask.shape[3]
        keys = self.places[:rows, :length]
        far = positions[:, None, :, None] - keys[:, None, None, :] >= self.size
        near = mask.masked_fill(far, torch.finfo(mask.dtype).min)
        return near if self.everywhere else {FULL: mask, SLIDING: near}
