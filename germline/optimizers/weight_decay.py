"""Decoupled weight decay, and the starting weights that it may lead to."""

import tempfile
import weakref
from collections.abc import Mapping

import numpy as np
import torch

from germline.config import OptimizerConfig
from germline.optimizers.fp32_arithmetic import ScratchBuffers, flat_chunks, round_to_fp32
from germline.types import GermlineError, Update


class WeightDecay:
    """Decoupled weight decay: moves theta towards an anchor before each step of an optimizer.

        theta <- theta - learning_rate * weight_decay * (theta - anchor)

    Decoupled (Loshchilov and Hutter 2019, arXiv 1711.05101) means that the gradient and its moments
    do not contain the decay; it also acts in generations without a signal. The anchor is 0, or the
    starting weights, which counters the forgetting that arXiv 2605.30148 describes. The decay rate
    is a fraction of the distance, so it is not multiplied by the unit of the learning rate.

    An update may have a decay of its own, a share of the way to the starting weights. Theta never
    moves beyond its anchor.

    A resumed run copies the starting weights from the base model, which it loads first. Snapshots,
    digests and the journal do not contain them.
    """

    def __init__(self, settings: OptimizerConfig, *, keeps_start: bool = False) -> None:
        self._settings = settings
        self._keeps_start = keeps_start or settings.decays_to_start
        self._start: StartingWeights | None = None
        self._of_update = 0.0
        self._scratch = ScratchBuffers(torch.float32, torch.float32)

    def begin(self, masters: Mapping[str, torch.Tensor]) -> None:
        """Copy the starting weights if they may be the anchor."""
        if self._keeps_start:
            self._start = StartingWeights(masters)

    def begin_update(self, update: Update) -> None:
        """Take its decay."""
        self._of_update = update.decay

    def move(self, name: str, master: torch.Tensor, learning_rate: float) -> None:
        """Move `master` towards its anchor, in place."""
        settings = self._settings
        self._move(name, master, self._of_update, to_start=True)
        share = settings.weight_decay * learning_rate
        self._move(name, master, share, to_start=settings.decay_to == "start")

    def _move(self, name: str, master: torch.Tensor, share: float, *, to_start: bool) -> None:
        share = round_to_fp32(-min(1.0, share))
        if not share:
            return
        starts = []
        if to_start:
            assert self._start is not None
            starts = [self._start.read(name).to(master.device)]
        for theta, *start in flat_chunks(master, *starts):
            change, anchor = self._scratch.like(theta)
            if start:
                anchor.copy_(start[0])
                torch.sub(theta, anchor, out=change)
            torch.mul(change if start else theta, share, out=change)
            torch.add(theta, change, out=theta)


class StartingWeights:
    """Copies of tensors in a temporary file, as in memory they would be as large as a model.

    They are in bf16 or fp16 if no number loses a bit.

    Raises:
        GermlineError: the file cannot be written.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._places: dict[str, tuple[int, torch.dtype]] = {}
        try:
            # Open as long as it is read. With a buffer, numpy would copy it in small pieces.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
            for name, tensor in tensors.items():
                narrow = _narrow(tensor)
                self._places[name] = self._file.tell(), narrow.dtype
                np.save(self._file, narrow.cpu().reshape(-1).view(torch.uint8).numpy())
        except OSError as error:
            raise GermlineError(
                "the starting weights, to which weights decay, cannot be written to "
                f"{tempfile.tempdir or 'a temporary folder'}: {error}; set TMPDIR to a folder that "
                "has room for them"
            ) from None

    def read(self, name: str) -> torch.Tensor:
        """Read one of them; it is flat, and on the CPU."""
        place, dtype = self._places[name]
        self._file.seek(place)
        return torch.from_numpy(np.load(self._file)).view(dtype)


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    for dtype in (torch.bfloat16, torch.float16):
        narrow = tensor.to(dtype)
        if torch.equal(narrow.float(), tensor):
            return narrow
    return tensor
