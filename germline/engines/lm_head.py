"""The LM head as one matrix product over all rows of a batch.

With `logits_to_keep`, the logits of the last positions alone, a model passes its head a slice
`[rows, kept, hidden]` of `[rows, length, hidden]`. torch cannot view such a slice as a matrix and
runs a batched product with the weight expanded to every row: in bf16 on a CPU the head is copied
once per row (272 MB times 64 rows at the shape of Qwen2.5-0.5B), on a GPU it is read once per row.
A contiguous input gives one product of two matrices.
"""

from typing import Any

from torch import Tensor, nn


def make_head_input_contiguous(model: nn.Module) -> None:
    """Register a hook that makes the input of a model's LM head contiguous."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    if isinstance(head, nn.Module):
        head.register_forward_pre_hook(_contiguous)


def _contiguous(_head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy the hidden states unless they are contiguous, as in a decode step."""
    return tuple(one.contiguous() if isinstance(one, Tensor) else one for one in inputs)
