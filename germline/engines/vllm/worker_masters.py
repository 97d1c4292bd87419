"""Keeps the masters in vLLM's workers, which are other processes, equal to the engine's.

At the start the config is sent, then updates: seeds and coefficients. Digests come back. Tensors
are sent only after a snapshot was loaded here, as the workers do not know the updates in it.
"""

import logging
from collections.abc import Callable, Mapping

from germline.config import Config
from germline.engines.master_weights import Masters
from germline.types import GermlineError, MeanUpdate, Update

log = logging.getLogger(__name__)

Call = Callable[..., list[Mapping[str, str]]]
"""Calls a method of `worker_extension.WorkerMembers` in all workers, and returns their replies."""


class WorkerMasters:
    """The masters of all workers.

    Args:
        call: reaches the workers.
        masters: of the engine.
        config: from which the workers build masters of the model that vLLM serves.

    Raises:
        GermlineError: vLLM serves another model, or the workers cannot build such masters.
    """

    def __init__(self, call: Call, masters: Masters, config: Config) -> None:
        self._call = call
        self._masters = masters
        base = masters.base.digest()
        for reply in call("build", config, searched=masters.space is not None):
            if reply["base"] != base:
                raise GermlineError(
                    f"model={masters.base.source}: the workers of vLLM loaded other weights, from "
                    f"{reply['model']} (digest {reply['base'][:16]}, not {base[:16]}): remove the "
                    "model from engine.options"
                )
        self._digest = self._common_digest(call("digest"))

    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply an update that the engine has applied to its masters already."""
        self._digest = self._common_digest(self._call("apply", update))
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
            # One tensor a call: a call is never larger than the largest tensor.
            self._call("receive", name, tensor.cpu().contiguous())
        self._digest = self._common_digest(self._call("restore"))
        if self._digest != self._masters.digest():
            raise GermlineError(
                "the masters in vLLM's workers differ from those that were sent: the memory of "
                "this machine is unreliable"
            )

    def _common_digest(self, replies: list[Mapping[str, str]]) -> str:
        digests = sorted({reply["masters"] for reply in replies})
        if len(digests) != 1:
            raise GermlineError(
                f"vLLM's workers have different masters after the same updates "
                f"({', '.join(digests)}): the memory of this machine is unreliable"
            )
        return digests[0]
