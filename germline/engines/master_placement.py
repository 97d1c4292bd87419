"""Where each tensor lives: the serving copy, and the value that updates and digests use.

    searched    an fp32 master beside the serving copy; in fp32 on one device they may be one tensor
    frozen      no fp32 copy: the serving copy itself, where it holds every stored value exactly
                (bf16 served in bf16 or fp32), else the stored tensor on the host (fp32 or fp16
                served in bf16), because digests and exports are of the stored values

Tensors are placed one after another, so that loading holds one tensor more than the final state.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from germline.protocols import AdapterSpace, CoordinateSpace, Space
from germline.types import GermlineError, TensorInfo


@dataclass(frozen=True)
class MasterPlacement:
    """Where and how the tensors of a model are held.

    Attributes:
        device: of the serving copies.
        dtype: of the serving copies.
        master_device: of the fp32 masters.
        masters_apart: whether members are written into the serving copy, so that a master must
            never share its storage.
    """

    device: torch.device
    dtype: torch.dtype
    master_device: torch.device
    has_separate_masters: bool = False

    def place(self, model: nn.Module, searched: Collection[str]) -> dict[str, Tensor]:
        """Move a model's parameters to where they are served; return the values by name.

        Args:
            model: on the CPU, in the dtype its files hold.
            searched: names of the parameters that updates move.
        """
        values = {}
        for name, parameter in model.named_parameters():
            stored = parameter.detach()
            parameter.data = stored.to(self.device, self.dtype)
            serving = parameter.detach()
            if name in searched:
                values[name] = self._master(stored, serving)
            else:
                values[name] = serving if holds_exactly(self.dtype, stored.dtype) else stored
        return values

    def _master(self, stored: Tensor, serving: Tensor) -> Tensor:
        is_master = self.dtype == torch.float32 and self.device == self.master_device
        master = serving if is_master else stored.to(self.master_device, torch.float32)
        shared = master.data_ptr() == serving.data_ptr()
        return master.clone() if shared and self.has_separate_masters else master


def holds_exactly(dtype: torch.dtype, stored: torch.dtype) -> bool:
    """Tell whether a dtype can represent every value of another one."""
    return torch.promote_types(dtype, stored) == dtype


def searched_names(space: Space | None, infos: Sequence[TensorInfo], source: str) -> frozenset[str]:
    """Return the parameters of the model itself that a space searches.

    An adapter or coordinates are searched beside the model, whose parameters are frozen.

    Raises:
        GermlineError: the space cannot search the model, which `source` names.
    """
    if space is None or isinstance(space, AdapterSpace | CoordinateSpace):
        return frozenset()
    with model_in_errors(source):
        return frozenset(info.name for info in space.select(infos))


@contextmanager
def model_in_errors(source: str) -> Iterator[None]:
    """Add the model to what a space says of its tensors: spaces know tensors, not models."""
    try:
        yield
    except GermlineError as error:
        if not source or source in str(error):
            raise
        raise GermlineError(f"{error} (model={source})") from None
