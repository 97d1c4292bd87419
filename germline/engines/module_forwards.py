"""Modules of a model that run other forwards, or get other inputs, for a while."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Replace the forwards of modules during a `with` block.

    Hooks would do the same, but one costs more than a small correction of a layer.
    """
    with ExitStack() as restored:
        for module, forward in forwards:
            module.forward = forward
            restored.callback(delattr, module, "forward")
        yield


class HeadInput:
    """The hidden states that the LM head of a model gets: contiguous, and of some positions.

    With `logits_to_keep`, the logits of the last positions alone, a model passes its head a slice
    `[rows, kept, hidden]` of `[rows, length, hidden]`. torch cannot view such a slice as a matrix
    and runs a batched product with the weight expanded to every row: in bf16 on a CPU the head is
    copied once per row (272 MB times 64 rows at the shape of Qwen2.5-0.5B), on a GPU it is read
    once per row. A contiguous input gives one product of two matrices.

    Rows with prompts of different lengths need logits at different positions. From the first to
    the last these can be many more than those of the completions: 64 rows with prompts of 500 to
    2,000 tokens have 30 GB of logits there, and 0.3 GB at 16 tokens each (bf16, 151,936 words).
    """

    def __init__(self, model: nn.Module) -> None:
        self._positions: Tensor | None = None
        head = model.get_output_embeddings()  # type: ignore[operator]
        if isinstance(head, nn.Module):
            head.register_forward_pre_hook(self._chosen)

    @contextmanager
    def only(self, positions: Tensor | None) -> Iterator[None]:
        """Keep these positions `[rows, kept]` of each row during a `with` block; None: all."""
        self._positions = positions
        try:
            yield
        finally:
            self._positions = None

    def _chosen(self, _head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy the hidden states unless they are contiguous, as in a decode step."""
        hidden, *others = inputs
        if self._positions is not None:
            where = self._positions[..., None].expand(-1, -1, hidden.shape[-1])
            hidden = hidden.gather(1, where)
        return hidden.contiguous(), *others
