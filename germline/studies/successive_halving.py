"""Successive halving: short trainings from the same start; the worse half ends after every round.

The state of a trial is restored by replaying its updates, so one copy of the initial weights is
enough for any number of trials. Scores are those of the center, greedy or sampled as in the config,
on examples that no trial trains on. Source: Jamieson and Talwalkar 2016, arXiv 1502.07943.
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
        learning_rate: None when the strategy has none.
        strategy: the strategy with these settings.
        updates: updates of the generations trained so far.
        scores: (generations trained, mean reward of the center on the scoring examples), in order.
    """

    sigma: float
    learning_rate: float | None
    strategy: Strategy = field(repr=False)
    updates: list[Update | MeanUpdate] = field(default_factory=list, repr=False)
    scores: list[tuple[int, float]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The latest score; minus infinity before the first one, or when it is missing."""
        newest = self.scores[-1][1] if self.scores else math.nan
        return newest if not math.isnan(newest) else -math.inf


def begin_trial(
    bench: TrialEngine, sigma: float, learning_rate: float | None, horizon: int
) -> Trial:
    """Make a trial of a pair; the strategy's schedules run over `horizon` generations."""
    changes: dict[str, object] = {"sigma": sigma}
    if learning_rate is not None:
        changes["learning_rate"] = learning_rate
    return Trial(sigma, learning_rate, bench.strategy(horizon, **changes))


def train_trial(bench: TrialEngine, trial: Trial, to: int) -> None:
    """Continue a trial until it has `to` generations, and score its center."""
    bench.restart()
    for update in trial.updates:
        bench.engine.apply(update)
    records = bench.train(trial.strategy, range(len(trial.updates), to))
    trial.updates += [record.update for record in records]
    trial.scores.append((to, bench.score(bench.fresh)))


def successive_halving(
    bench: TrialEngine,
    trials: Sequence[Trial],
    rounds: Sequence[int],
    in_time: Callable[[int], bool],
) -> Trial:
    """Train all trials, then the better half further, and return the best of the last round.

    Args:
        bench: the engine of the trials.
        trials: in order of preference: the first wins a tie.
        rounds: generations that each remaining trial has had after each round.
        in_time: returns whether there is time for a number of generations; a round that does not
            fit is not begun.
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
