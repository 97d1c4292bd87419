"""Members as whole tensors: what a server must write into its weights to play one.

A member is always worked out from the fp32 masters, and the center is written back from them:
nothing is ever subtracted.
"""

from collections.abc import Iterator

from torch import Tensor

from germline.engines.master_weights import Masters
from germline.engines.merge import merged_tensors
from germline.protocols import AdapterSpace, CoordinateSpace
from germline.types import Perturbation, TensorInfo


def written_tensor_names(masters: Masters) -> tuple[TensorInfo, ...]:
    """Return the tensors of the base model that members or updates change, in canonical order."""
    if isinstance(masters.space, AdapterSpace):
        return ()
    if isinstance(masters.space, CoordinateSpace):
        names = {info.name for info in (*masters.space.matrices, *masters.adapted)}
        return tuple(info for info in masters.base.tensors if info.name in names)
    return masters.searched


def member_tensors(masters: Masters, member: Perturbation | None) -> Iterator[tuple[str, Tensor]]:
    """Yield what is written for a member (None: the center), fp32, by canonical name."""
    if isinstance(masters.space, CoordinateSpace):
        values = merged_tensors(masters, member)
        yield from ((info.name, values[info.name]) for info in written_tensor_names(masters))
        return
    for info in written_tensor_names(masters):
        master = masters.tensors[info.name]
        if member is None:
            yield info.name, master
        else:
            yield info.name, masters.displacements([member], info)[0].add_(master)
