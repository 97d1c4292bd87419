"""A grader that takes a given time; worker processes of `benchmarks.graders` import it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from germline.types import Example


@dataclass(frozen=True)
class SlowGrader:
    """Wait, or compute, for some time, then return the length of the text."""

    seconds: float
    computes: bool = False

    def __call__(self, text: str, _example: Example) -> Mapping[str, float]:
        """Return the part `length`."""
        until = time.perf_counter() + self.seconds
        while self.computes and time.perf_counter() < until:
            pass
        if not self.computes and self.seconds:
            time.sleep(self.seconds)
        return {"length": float(len(text))}
