"""The key-value cache of a microbatch, and the window of layers that attend to its last tokens.

The cache is allocated once per turn; rows can be dropped or repeated.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

FULL, SLIDING = "full_attention", "sliding_attention"


class _BufferedLayer(DynamicLayer):
    """Keys and values `[rows, heads, capacity, dim]`; the first `length` positions are filled."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self.is_initialized = False

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.keys = _buffer(key_states, self.capacity)
            self.values = _buffer(value_states, self.capacity)
            self.is_initialized = True
        start, self.length = self.length, self.length + key_states.shape[2]
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def taken(self, rows: Tensor, capacity: int) -> "_BufferedLayer":
        layer = _BufferedLayer(capacity)
        layer.keys = _taken(self.keys, rows, self.length, capacity)
        layer.values = _taken(self.values, rows, self.length, capacity)
        layer.length, layer.is_initialized = self.length, True
        return layer

    def repack(self, rows: Tensor, places: Tensor, capacity: int) -> None:
        self.keys = _repacked(self.keys, rows, places, capacity)
        self.values = _repacked(self.values, rows, places, capacity)
        self.capacity, self.length = capacity, places.shape[1]


class BufferedCache(Cache):
    """One buffered layer per decoder layer, made at the first use."""

    def __init__(self, capacity: int) -> None:
        super().__init__(layer_class_to_replicate=lambda: _BufferedLayer(capacity))

    def take(self, rows: Tensor) -> None:
        """Keep these rows of every layer."""
        for number, layer in enumerate(self.layers):  # only one is in memory twice
            self.layers[number] = layer.taken(self._held(layer, rows), layer.capacity)

    def taken(self, rows: Tensor, capacity: int) -> "BufferedCache":
        """Return a cache of copies of these rows, which holds `capacity` positions."""
        cache = BufferedCache(capacity)
        cache.layers = [layer.taken(self._held(layer, rows), capacity) for layer in self.layers]
        return cache

    def _held(self, layer: _BufferedLayer, rows: Tensor) -> Tensor:
        """Return the rows that a layer holds: those of the first member where members share it."""
        members = len(self.layers[-1].keys) // len(layer.keys)
        return rows[: len(rows) // members]

    def repack(self, rows: Tensor, places: Tensor, capacity: int) -> None:
        """Keep these rows, and of each the positions in `places` `[rows, positions]`."""
        for layer in self.layers:
            layer.repack(rows, places, capacity)


@dataclass
class SlidingWindow:
    """The window of a model over the rows of a batch.

    The cache holds every token of a text, so a window is only a mask. Distances are between
    positions in the text, not between indices of the cache: there may be padding between a shared
    prefix and the rest of a prompt.

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

        `seen`, `[rows, capacity]` on the CPU, is False where an index of the cache is padding.
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

        The given mask is that of full attention, additive, `[rows, 1, width, length]`.
        """
        rows, length = mask.shape[0], mask.shape[3]
        keys = self.places[:rows, :length]
        far = positions[:, None, :, None] - keys[:, None, None, :] >= self.size
        near = mask.masked_fill(far, torch.finfo(mask.dtype).min)
        return near if self.everywhere else {FULL: mask, SLIDING: near}


def _buffer(states: Tensor, capacity: int) -> Tensor:
    rows, heads, _, dim = states.shape
    return states.new_empty(rows, heads, capacity, dim)


def _taken(buffer: Tensor, rows: Tensor, length: int, capacity: int) -> Tensor:
    """Copy the filled part; the rest is overwritten before it is read."""
    _, heads, _, dim = buffer.shape
    kept = buffer.new_empty(len(rows), heads, capacity, dim)
    torch.index_select(buffer[:, :, :length], 0, rows, out=kept[:, :, :length])
    return kept


def _repacked(buffer: Tensor, rows: Tensor, places: Tensor, capacity: int) -> Tensor:
    """Copy the positions of each row to the begin of a new buffer; the rest is overwritten."""
    _, heads, length, dim = buffer.shape
    packed = buffer.new_empty(len(rows), heads, capacity, dim)
    # A row of one flat table per position of a head: copying those is as fast as copying memory.
    first = (rows[:, None] * heads + torch.arange(heads, device=rows.device)) * length
    index = first[:, :, None] + places[:, None, :]
    packed[:, :, : places.shape[1]] = buffer.reshape(-1, dim)[index]
    return packed
