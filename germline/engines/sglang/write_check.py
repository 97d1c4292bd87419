"""Whether what is written into a server arrives: SGLang says "Success" also to names it ignores.

One tensor of every kind that a space writes is changed, and the server's checksums are asked for
before and after. Kinds are names without the number of the layer, as that is how loaders know them.
The base is written over what this leaves behind, before anything is played.
"""

import logging
import re
from collections.abc import Callable

import torch

from germline.engines.master_weights import Masters
from germline.engines.served.http_client import RequestRefused
from germline.engines.sglang.client import SglangClient
from germline.types import GermlineError, TensorInfo

log = logging.getLogger(__name__)


def check_writes(
    client: SglangClient, masters: Masters, dtype: torch.dtype, version: Callable[[], str]
) -> None:
    """Change one tensor of every kind, and look whether the server has noticed.

    Args:
        client: of the server.
        masters: their first tensors of each kind are sent, changed.
        dtype: of the server's weights.
        version: makes a new name for its weights.

    Raises:
        GermlineError: some of them do not arrive, so that members would differ in nothing.
    """
    try:
        before = client.checksum()
    except RequestRefused as refusal:
        log.warning("whether weights arrive as they are written cannot be looked at: %s", refusal)
        return
    ignored = []
    for info in first_tensor_per_kind(masters.changed_weights()):
        changed = masters.base.weights[info.name] + 1.0
        client.write([(info.name, changed)], dtype, version())
        after = client.checksum()
        if after == before:
            ignored.append(info.name)
        before = after
    if ignored:
        raise GermlineError(
            f"{client.connection.name}: the server has no weights called {', '.join(ignored)}, and "
            "ignores what is written there: leave such tensors out (space.exclude), or use "
            "space.kind=lora, or engine=inprocess"
        )


def first_tensor_per_kind(infos: tuple[TensorInfo, ...]) -> list[TensorInfo]:
    """Return the first tensor of every kind."""
    found: dict[str, TensorInfo] = {}
    for info in infos:
        found.setdefault(re.sub(r"\.\d+\.", ".", info.name), info)
    return list(found.values())
