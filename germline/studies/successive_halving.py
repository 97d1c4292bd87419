"""Short trainings from the same start: after every round the worse half ends (successive halving).

A trial is set back and brought forward by replaying its updates, so that a single copy of the start
serves any number of trials. Scores are of the center, greedy or sampled as the config says, on
examples that no trial trains on. Source: Jamieson and Talwalkar 2016, arXiv 1502.07943.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from germline.protocols import Strategy
from germline.studies.trial_engine import TrialEngine
from germline.types import MeanUpdate, Update


@dataclass
class Trial:
    """One short training.

    Attributes:
        sigma: in `strategy.sigma_unit`.
        learning_rate: None where the strategy has none.
        scores: (generations done, mean reward of the center on the judging examples), in order.
    """

    sigma: float
    learning_rate: float | None
    strategy: Strategy = field(repr=False)
    updates: list[Update | MeanUpdate] = field(default_factory=list, repr=False)
    scores: list[tuple[int, float]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The newest score; minus infinity before the first, or where it is missing."""
        newest = self.scores[-1][1] if self.scores else math.nan
        return newest if not math.isnan(newest) else -math.inf


def begin_trial(
    bench: TrialEngine, sigma: float, learning_rate: float | None, horizon: int
) -> Trial:
    """Make a trial at one pair, for a strategy that thinks it runs for `horizon` generations."""
    changes: dict[str, object] = {"sigma": sigma}
    if learning_rate is not None:
        changes["learning_rate"] = learning_rate
    return Trial(sigma, learning_rate, bench.strategy(horizon, **changes))


def train_trial(bench: TrialEngine, trial: Trial, to: int) -> None:
    """Train on to so many generations, from where the trial stopped, and score the center."""
    bench.restart()
    for update in trial.updates:
        bench.engine.apply(update)
    played = bench.train(trial.strategy, range(len(trial.updates), to))
    trial.updates += [record.update for record in played]
    trial.scores.append((to, bench.score(bench.fresh)))


def successive_halving(
    bench: TrialEngine,
    trials: Sequence[Trial],
    rounds: Sequence[int],
    in_time: Callable[[int], bool],
) -> Trial:
    """Train all trials, then the better half further, and return the best of the last round.

    Args:
        bench: where they train.
        trials: in order of preference: the first wins a tie.
        rounds: generations every trial still there has had after each round.
        in_time: whether so many more generations may be played; a round is played whole or not.
    """
    left = list(enumerate(trials))
    for to in rounds:
        if not in_time(sum(to - len(trial.updates) for _, trial in left)):
            break
        for _, trial in left:
            train_trial(bench, trial, to)
        left.sort(key=lambda one: (-one[1].score, one[0]))
        if to != rounds[-1]:
            left = left[: max(1, len(left) // 2)]
    bench.restart()
    return left[0][1]
