"""What the live view and the line view have in common: their protocol, times and trials."""

import os
import time
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from germline.cli import text_format
from germline.config import AutoSigma, Config, Nes
from germline.signal_types import SigmaTrial
from germline.strategies.calibrated_sigma import TRIALS
from germline.types import GenerationRecord

STOPPING = "Finishing what is running, then stopping. Ctrl-C again stops at once."


@runtime_checkable
class ProgressView(Protocol):
    """Shows the progress of a run."""

    def start(self) -> None:
        """Start to show progress."""

    def generation(self, record: GenerationRecord) -> None:
        """Show a finished generation."""

    def trial(self, trial: SigmaTrial) -> None:
        """Show a sigma whose trial begins, or the result of a trial."""

    def close(self) -> None:
        """Stop showing progress."""

    def stopping(self) -> None:
        """Show that the run stops after this generation; called from a signal handler."""


class SilentView:
    """Shows no progress, except a confirmation of Ctrl-C."""

    def start(self) -> None:
        """Print nothing."""

    def generation(self, record: GenerationRecord) -> None:
        """Print nothing."""

    def trial(self, trial: SigmaTrial) -> None:
        """Print nothing."""

    def stopping(self) -> None:
        """Confirm Ctrl-C, in quiet mode too."""
        # A signal may arrive inside a print; the system call is safe there, a second print is not.
        os.write(2, f"\n{STOPPING}\n".encode())

    def close(self) -> None:
        """Release nothing."""


OF_WEIGHTS = {"mean_abs": " x mean |W|", "std": " x std W", "rms": " x rms W"}
"""Units that are a fraction of the weights of each tensor, as they are shown after sigma."""

REPEATED = ("ask_s", "evaluate_s", "tell_s", "signals_s", "apply_s", "digest_s")
"""Parts of the time of a generation that every generation has."""


class RemainingTime:
    """Estimates the remaining time from the finished generations."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.left_s: float | None = None
        self._first: tuple[int, float] | None = None

    def tick(self, record: GenerationRecord) -> None:
        """Record that a generation is finished.

        The mean leaves out the first one: until a second one is finished, its own time counts,
        without the start of the run, the score of the base model and the calibration of sigma.
        """
        now = time.monotonic()
        left = record.generations - record.generation - 1
        if self._first is None:
            self._first = (record.generation, now)
            self.left_s = left * sum(record.timing.get(name, 0.0) for name in REPEATED)
        else:
            generation, then = self._first
            self.left_s = left * (now - then) / (record.generation - generation)

    @property
    def elapsed_s(self) -> float:
        """Seconds since this process began to train."""
        return time.monotonic() - self.started


def trial_begin(number: int, trial: SigmaTrial) -> str:
    """Describe a trial of sigma that begins."""
    return (
        f"trial {number} of at most {TRIALS}: KL divergence of members with sigma {trial.sigma:g}"
    )


def trial_result(trial: SigmaTrial, config: Config | None) -> str:
    """Describe the result of a trial of sigma."""
    text = f"sigma {trial.sigma:g}: KL {text_format.number(trial.kl)} nats per token"
    section = config.search if config else None
    if isinstance(section, Nes) and isinstance(section.sigma, AutoSigma):
        text += f", target {section.sigma.target_kl:g}"
    return text


def cost_weight(metrics: Mapping[str, Any], first: float | None = None) -> str:
    """Describe lambda and the mean cost of the center; empty where the reward has no lambda.

    Args:
        metrics: of the strategy.
        first: lambda of the first generation, to say that fitness falls because lambda has grown.
    """
    if "lambda" not in metrics:
        return ""
    now, cost = metrics["lambda"], metrics["center_cost"]
    grown = first is not None and now > first
    since = f", {text_format.number(first)} at first: fitness falls as it grows" if grown else ""
    of_center = "" if cost is None else f"  cost of the center {text_format.number(cost)}"
    return f"lambda {text_format.number(now)}{since}{of_center}"


def unit_of_sigma(config: Config) -> str:
    """Return the unit of sigma and the walk after a space; empty: that of the weights."""
    return OF_WEIGHTS.get(config.search.unit, "")


def tokens_per_s(record: GenerationRecord) -> float | None:
    """Return the tokens per second of a generation; None when no time was measured."""
    seconds = record.evaluation.decode_seconds
    return record.evaluation.tokens / seconds if seconds > 0 else None
