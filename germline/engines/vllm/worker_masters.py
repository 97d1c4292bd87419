"""Keeps the masters in vLLM's workers, which are other processes, equal to the engine's.

At the start a spec is sent, then updates: seeds and coefficients. Digests come back. Tensors are
sent only after a snapshot was loaded here, as the workers do not know the updates it contains.
"""

import base64
import logging
from collections.abc import Callable

from safetensors.torch import save

from germline.engines.master_weights import Masters
from germline.engines.served.serialization import write_update
from germline.types import GermlineError, MeanUpdate, Update

log = logging.getLogger(__name__)

Call = Callable[..., list[dict[str, str]]]
"""Calls one of `worker_extension.VERBS` in all workers, and returns their replies."""


class WorkerMasters:
    """The masters of all workers.

    Args:
        call: reaches the workers.
        masters: of the engine.
        spec: from which the workers build masters of the model that vLLM serves.
        server: the name of what serves, for messages.

    Raises:
        GermlineError: vLLM serves another model, or the workers cannot build such masters.
    """

    def __init__(self, call: Call, masters: Masters, spec: str, server: str) -> None:
        self._call = call
        self._masters = masters
        self._updates = 0
        base = masters.base.digest()
        for reply in call("build", spec):
            if reply["base"] != base:
                raise GermlineError(
                    f"model: {server} serves {reply['model']!r}, whose weights have digest "
                    f"{reply['base'][:16]}; those of {masters.base.source!r} have {base[:16]}: "
                    "start the server with the model of this run, or set model to the server's"
                )
        self._digest = self._common_digest(call("digest"))

    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply an update that the engine has applied to its masters already."""
        self._updates += 1
        replies = self._call("apply", str(self._updates), write_update(update))
        self._digest = self._common_digest(replies)
        if self._digest != self._masters.digest():
            log.warning(
                "after generation %d the masters in vLLM's workers differ in their last bits from "
                "those of this process, which the journal records: sending them (the processors "
                "calculate differently)",
                update.generation,
            )
            self.send()

    def send(self) -> None:
        """Send the engine's masters, if the workers' differ."""
        if self._digest == self._masters.digest():
            return
        for name, tensor in self._masters.state().items():
            # One tensor a request: a request is never larger than the largest tensor.
            content = save({name: tensor.cpu().contiguous()})
            self._call("receive", name, base64.b64encode(content).decode("ascii"))
        self._digest = self._common_digest(self._call("restore"))
        if self._digest != self._masters.digest():
            raise GermlineError(
                "the masters in vLLM's workers differ from those that were sent: the server's "
                "memory or the connection is unreliable; restart the server and resume the run"
            )

    def _common_digest(self, replies: list[dict[str, str]]) -> str:
        digests = sorted({reply["masters"] for reply in replies})
        if len(digests) != 1:
            raise GermlineError(
                f"vLLM's workers have different masters after the same updates "
                f"({', '.join(digests)}): their memory is unreliable; restart vLLM and resume the "
                "run"
            )
        return digests[0]
