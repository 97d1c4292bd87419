"""A decode step as one program of fixed shapes, which a GPU can replay without Python.

At small batches a GPU waits for Python between the hundreds of small kernels of a step. Here a step
reads its tokens and its cache position from tensors, writes keys and values at that position, and
attends over the whole cache with a mask; so one CUDA graph runs all steps of a batch. A new graph
is recorded when rows are dropped, because the shapes change.

The floats may differ in the last bits from those of a step that attends over the filled part alone.
On a CPU nothing is recorded: the same program runs, so that tests on a CPU cover it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from germline.engines.kv_cache import BufferedCache

WARM_UP = 2
"""Runs before recording: libraries choose kernels and allocate memory in the first runs."""


@dataclass(frozen=True)
class StepBuffers:
    """The inputs of a step, in tensors whose addresses do not change.

    Attributes:
        tokens: the newest token of every row, `[rows, 1]`.
        positions: of these tokens in their texts, `[rows, 1]`.
        place: index in the cache where they are written, `[1]`.
        mask: additive, over the whole capacity, `[rows, 1, 1, capacity]`.
    """

    tokens: Tensor
    positions: Tensor
    place: Tensor
    mask: Tensor

    def visible(self) -> Tensor:
        """Return the mask with everything after the newest token hidden."""
        places = torch.arange(self.mask.shape[3], device=self.mask.device)
        return self.mask.masked_fill(places > self.place, torch.finfo(self.mask.dtype).min)


Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(token ids, positions, mask) -> logits of the last token."""


class FixedShapeSteps:
    """The decode steps of one batch, until rows are dropped."""

    def __init__(
        self, forward: Forward, cache: BufferedCache, mask: Tensor, position: Tensor, filled: int
    ) -> None:
        """Begin after a prefill.

        Args:
            forward: runs the model on the cache.
            cache: filled by the prefill.
            mask: additive, over the whole capacity, `[rows, 1, 1, capacity]`.
            position: of the next token of each row, `[rows]`.
            filled: number of filled places in the cache.
        """
        device = position.device
        tokens = torch.zeros(len(position), 1, dtype=torch.long, device=device)
        place = torch.tensor([filled], device=device)
        self._state = StepBuffers(tokens, position[:, None].clone(), place, mask)
        self._forward = forward
        self._cache = cache
        cache.fix(place)
        self._graph = self._record() if device.type == "cuda" else None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Append one token to every row and return the logits after it."""
        self._state.tokens.copy_(tokens[:, None])
        if self._graph is None:
            self._logits = self._run()
        else:
            self._graph.replay()
        self._state.place.add_(1)
        self._state.positions.add_(1)
        self._cache.advance()
        return self._logits

    def _run(self) -> Tensor:
        state = self._state
        return self._forward(state.tokens, state.positions, state.visible())

    def _record(self) -> torch.cuda.CUDAGraph:
        # A run writes only at the place of the next token, which the first replay overwrites.
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UP):
                self._run()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._logits = self._run()
        return graph
