"""Sliding-window attention: which layers see only the last tokens, and the masks that say so.

The cache holds every token of a text, so a window is only a mask. Distances are between positions,
not between places in the cache: padding may lie between a shared prefix and the rest of a prompt.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from germline.types import GermlineError

FULL, SLIDING = "full_attention", "sliding_attention"


def check_attention_layers(config: PreTrainedConfig) -> None:
    """Refuse a model with layers that are neither full nor sliding-window attention.

    Raises:
        GermlineError: naming the kinds of layers found.
    """
    strange = set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}
    if strange:
        raise GermlineError(
            f"model: {config.model_type} has layers of {', '.join(sorted(strange))}, and "
            f"engine.kind=inprocess serves {FULL} and {SLIDING} only"
        )


@dataclass
class SlidingWindow:
    """The window of a model over the rows of a batch.

    Attributes:
        size: how many tokens a row sees, the newest included.
        everywhere: whether all layers have it, as in families that know no kinds of layers.
        places: position of every place in the cache, `[rows, capacity]`.
    """

    size: int
    everywhere: bool
    places: Tensor

    @classmethod
    def of(
        cls, config: PreTrainedConfig, seen: Tensor, device: torch.device
    ) -> "SlidingWindow | None":
        """Return None where the model has no window, or no text outgrows it.

        Args:
            config: of the text model.
            seen: False where a place in the cache is padding, `[rows, capacity]`, on the CPU.
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
        """Return what the model takes: one mask for all layers, or one per kind of layer.

        Args:
            mask: of full attention, additive, `[rows, 1, width, length]`.
            positions: of the new tokens, `[rows, width]`.
        """
        rows, length = mask.shape[0], mask.shape[3]
        keys = self.places[:rows, :length]
        far = positions[:, None, :, None] - keys[:, None, None, :] >= self.size
        near = mask.masked_fill(far, torch.finfo(mask.dtype).min)
        return near if self.everywhere else {FULL: mask, SLIDING: near}
