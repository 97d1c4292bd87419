"""Masters in vLLM's workers, which are processes elsewhere: kept equal to the engine's by updates.

What travels is a recipe at the start, and then updates: seeds and coefficients. Digests come back.
Only after a snapshot was loaded here, whose updates are not known, do tensors travel as well.
"""

import base64
import logging
from collections.abc import Callable

from safetensors.torch import save

from germline.engines.master_weights import Masters
from germline.engines.served.serialization import write_update
from germline.types import GermlineError, MeanUpdate, Update

log = logging.getLogger(__name__)

Ask = Callable[..., list[dict[str, str]]]
"""Asks all workers for one of `inside.VERBS`, with texts; returns their answers."""


class WorkerMasters:
    """The masters of all workers.

    Args:
        ask: reaches the workers.
        masters: of the engine.
        recipe: how they are made of the model that vLLM serves.
        where: what is asked, for messages.

    Raises:
        GermlineError: vLLM serves another model, or the workers cannot make such masters.
    """

    def __init__(self, ask: Ask, masters: Masters, recipe: str, where: str) -> None:
        self._ask = ask
        self._masters = masters
        self._updates = 0
        ours = masters.base.digest()
        for answer in ask("build", recipe):
            if answer["base"] != ours:
                raise GermlineError(
                    f"model: {where} serves {answer['model']!r}, whose weights have digest "
                    f"{answer['base'][:16]}; those of {masters.base.source!r} have {ours[:16]}: "
                    "start it with the model of this run, or give its model to this run"
                )
        self._digest = self._agreed(ask("digest"))

    def follow(self, update: Update | MeanUpdate) -> None:
        """Move them by an update the engine's masters have followed already."""
        self._updates += 1
        self._digest = self._agreed(self._ask("apply", str(self._updates), write_update(update)))
        if self._digest != self._masters.digest():
            log.warning(
                "after generation %d the masters beside vLLM differ in their last bits from those "
                "here, which the journal goes by: sending them (the processors calculate "
                "differently)",
                update.generation,
            )
            self.send()

    def send(self) -> None:
        """Make them what the engine's are, by sending these where they differ."""
        if self._digest == self._masters.digest():
            return
        for name, tensor in self._masters.state().items():
            # One at a time: a request stays as small as the largest tensor.
            content = save({name: tensor.cpu().contiguous()})
            self._ask("receive", name, base64.b64encode(content).decode("ascii"))
        self._digest = self._agreed(self._ask("restore"))
        if self._digest != self._masters.digest():
            raise GermlineError(
                "the masters beside vLLM differ from those that were sent there: its memory or the "
                "connection cannot be relied on; start it anew and resume the run"
            )

    def _agreed(self, answers: list[dict[str, str]]) -> str:
        found = sorted({answer["masters"] for answer in answers})
        if len(found) != 1:
            raise GermlineError(
                f"the workers of vLLM moved their masters differently ({', '.join(found)}): their "
                "memory cannot be relied on; start it anew and resume the run"
            )
        return found[0]
