"""The decoder layers below all searched tensors: members that read the same texts share them.

Up to the first searched layer, the rows of all members are those of the center. So these layers
compute the rows of the first member, and the next layer gets a copy for each member: of 30 layers
of which 10 to 19 are searched, members compute 20.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from itertools import takewhile
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from germline.engines.model_tensors import replaced_forwards


class SharedLayers:
    """The layers of a model that members share; none where modules outside of layers are searched.

    Args:
        model: whose text is read.
        searched: its modules whose forwards members replace.
    """

    def __init__(self, model: PreTrainedModel, searched: Collection[nn.Module]) -> None:
        config = model.config.get_text_config()
        lists = [one for one in model.get_decoder().children() if isinstance(one, nn.ModuleList)]
        layers = next((one for one in lists if len(one) == config.num_hidden_layers), ())
        inside = [set(layer.modules()) for layer in layers]
        # In Gemma 3n, the last layers attend to keys of earlier ones.
        is_chain = not getattr(config, "num_kv_shared_layers", 0)
        if is_chain and set(searched) <= set().union(*inside):
            # The last layer tells how many rows there are.
            count = sum(1 for _ in takewhile(set(searched).isdisjoint, inside[:-1]))
            self._layers = list(layers)[:count]
        else:
            self._layers = []
        self._rows, self._members = 0, 1

    def among(self, members: int) -> AbstractContextManager[None]:
        """Let so many members share the layers during a `with` block.

        They have the same number of rows, with the same tokens, ordered by member.
        """
        self._members = members
        layers = self._layers if members > 1 else []
        return replaced_forwards(
            [(one, partial(self._compute, one, one.forward)) for one in layers]
        )

    def _compute(
        self, layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Compute the rows of the first member, and after the last layer copy them for each."""
        if layer is self._layers[0]:
            self._rows = len(args[0] if args else kwargs["hidden_states"])
        first = {name: self._first(one) for name, one in kwargs.items()}
        output = forward(*map(self._first, args), **first)
        return self._copied(output) if layer is self._layers[-1] else output

    def _first(self, value: Any) -> Any:
        """Return the rows of the first member; what has no row for each text as it is."""
        if isinstance(value, tuple):
            return tuple(map(self._first, value))
        if isinstance(value, Tensor) and value.dim() > 1 and len(value) == self._rows:
            return value[: self._rows // self._members]
        return value

    def _copied(self, output: Any) -> Any:
        """Return hidden states, alone or first in a tuple, with copies of the rows."""
        if isinstance(output, tuple):
            return (self._copied(output[0]), *output[1:])
        return output.repeat(self._members, *[1] * (output.dim() - 1))
