"""Held-out scores of the center, by the task and by scorers, with intervals over examples.

Several samples per example have pass@k (the share of examples of which one of k samples is right),
best@k where the metric is not a share, and majority@k where a task extracts answers.

The scorers of `held_out.scorers` judge held-out completions only: what is trained never sees their
scores. A run that is trained on a reward model or a judge may learn what that judge likes and
nobody else does. Another judge, beside it, shows it.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
from jaxtyping import Float64

from germline.config.scorers import ScorerBase
from germline.evaluation.statistics import (
    Z_95,
    Interval,
    best_of_k,
    bootstrap_interval,
    majority_at_k,
    wilson_interval,
)
from germline.protocols import EpisodeTask, Task, VotableTask
from germline.record.metrics_rows import mean_parts, rollout_text
from germline.scorers import Score
from germline.scorers.scored_graders import ScorerPart, start_scorer
from germline.types import Decoding, Evaluation, Example, GermlineError, HeldOutScore, Rollout

log = logging.getLogger(__name__)

HELD_OUT_NOISE = "held out"
"""Noise stream of held-out sampling, which is the same for every score of a run."""

TRIED = 4
"""Completions that a scorer is tried on before a run begins."""


FEWEST_VOTES = 3
"""Of two votes, no majority outvotes the other."""

Answers = Sequence[Sequence[str | None]]
"""The answers that a task extracts, `[samples][examples]`."""


class HeldOutScorers:
    """Scores held-out completions; the scorers work at the same time.

    `text_of` returns what scorers get of a completion's text, such as without its thinking.
    """

    def __init__(self, configs: Mapping[str, ScorerBase], text_of: Callable[[str], str]) -> None:
        self._configs = configs
        self._text_of = text_of
        self._parts: list[ScorerPart] = []
        try:
            for name, config in configs.items():
                self._parts.append(start_scorer(_setting(name), name, config))
        except BaseException:
            self.close()
            raise

    def score(
        self, rollouts: Sequence[Rollout], examples: Sequence[Example], generation: int
    ) -> tuple[HeldOutScore, ...]:
        """Score the completion of each example, by scorer; a warning says what is missing."""
        texts = {rollout.example: self._text_of(rollout_text(rollout)) for rollout in rollouts}
        answers = [texts[example.index] for example in examples]
        scores = self._scores(answers, examples, self._parts)
        for name, given in scores.items():
            missing = [score.missing for score in given if score.missing is not None]
            if missing:
                log.warning(
                    "%s: %d of %d held-out completions have no score: %s",
                    *(_setting(name), len(missing), len(given), missing[0]),
                )
        return tuple(
            score_of_values(
                generation,
                part.name,
                [one.value for one in scores[part.name]],
                higher_is_better=part.weight >= 0,
            )
            for part in self._parts
        )

    def check(
        self, examples: Sequence[Example], known: Mapping[str, ScorerBase] | None = None
    ) -> None:
        """Try every scorer on a few answers, but those that the run so far had (`known`)."""
        some = list(islice(examples, TRIED))
        before = known or {}
        tried = [one for one in self._parts if before.get(one.name) != self._configs[one.name]]
        texts = [one.answer or one.prompt for one in some]
        for name, given in self._scores(texts, some, tried).items():
            if given and all(score.missing is not None for score in given):
                raise GermlineError(
                    f"{_setting(name)} (kind={self._configs[name].kind}) scored none of the "
                    f"{len(given)} texts that were tried: {given[0].missing}"
                )

    def close(self) -> None:
        """Cancel what waits, and release the scorers."""
        for part in self._parts:
            part.queue.close()
            part.scorer.close()

    def _scores(
        self, texts: Sequence[str], examples: Sequence[Example], parts: Sequence[ScorerPart]
    ) -> dict[str, list[Score]]:
        items = list(zip(texts, examples, strict=True))
        pending = {part.name: part.queue.submit(items) for part in parts}
        return {name: future.result() for name, future in pending.items()}


def _setting(name: str) -> str:
    return f"held_out.scorers.{name}"


def score_center(
    evaluate: Callable[[Sequence[Example], Decoding], Evaluation],
    task: Task,
    examples: Sequence[Example],
    decoding: Decoding,
    generation: int,
    scorers: HeldOutScorers | None = None,
) -> tuple[HeldOutScore, Evaluation]:
    """Score the center on held-out examples, `generation` updates after the start.

    Only examples without the metric are left out: where a scorer fails, the reward is missing, but
    a metric that is another part of the rubric is known. Of several samples per example, the mean
    counts, and `scorers` score the first one.
    """
    evaluation = evaluate(examples, decoding)
    values = values_by_sample(evaluation, task.metric, examples)
    of = partial(score_of_values, generation, higher_is_better=task.metric_higher_is_better)
    score = of(task.metric, [mean_of_known(column) for column in values.T])
    reward, parts = mean_of_known(evaluation.rewards), mean_parts(evaluation.rollouts)
    score = replace(score, reward=reward, parts=parts)
    if len(values) > 1:
        answers = answers_by_sample(evaluation, task, examples)
        reduced = reductions(values, answers, higher_is_better=score.higher_is_better)
        score = replace(score, at_k=tuple(of(name, one.tolist()) for name, one in reduced.items()))
    firsts = [rollout for rollout in evaluation.rollouts if rollout.member == 0]
    if scorers is not None and (scored := scorers.score(firsts, examples, generation)):
        by_example = tuple(float(one) for one in evaluation.rewards[0])
        score = replace(score, rewards=by_example, scorers=scored)
    return score, evaluation


def mean_of_known(values: np.ndarray) -> float:
    """Return the mean of the values that are no NaN; NaN where there is none."""
    return math.nan if np.isnan(values).all() else float(np.nanmean(values))


def score_of_values(
    generation: int, metric: str, values: Sequence[float], *, higher_is_better: bool
) -> HeldOutScore:
    """Return the score that the values of examples make; NaN is missing, the reward the mean."""
    known = [value for value in values if not math.isnan(value)]
    mean, error = mean_and_error(known)
    # A cost whose values happen to be 0 or 1, such as a length difference, is not a share.
    share = bool(known) and higher_is_better and {*known} <= {0.0, 1.0}
    return HeldOutScore(
        generation,
        metric,
        mean,
        error,
        len(known),
        mean,
        proportion=share,
        higher_is_better=higher_is_better,
        values=tuple(values),
    )


def confidence_interval(score: HeldOutScore, *, bootstrap: bool = False) -> Interval:
    """Return the 95 % interval of a score over examples; NaN where its error is not known.

    For a share, Wilson's interval; for a mean, 1.96 standard errors to each side, or the BCa
    bootstrap over examples, which is the better one if their values are skewed.
    """
    if score.proportion:
        return wilson_interval(score.mean, score.n)
    if bootstrap:
        return bootstrap_interval([value for value in score.values if math.isfinite(value)])
    half = Z_95 * score.standard_error
    return score.mean - half, score.mean + half


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return mean and standard error; the error of fewer than two values is NaN."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return math.nan, math.nan
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan
    return float(array.mean()), error


def values_by_sample(
    evaluation: Evaluation, metric: str, examples: Sequence[Example]
) -> Float64[np.ndarray, "samples examples"]:
    """Return the metric of every sample of an evaluation of the center; NaN: missing."""
    values = np.full((len(evaluation.rewards), len(examples)), math.nan)
    places = {example.index: place for place, example in enumerate(examples)}
    for rollout in evaluation.rollouts:
        value = rollout.grade.parts.get(metric, math.nan)
        values[rollout.member, places[rollout.example]] = value
    return values


def answers_by_sample(
    evaluation: Evaluation, task: Task, examples: Sequence[Example]
) -> Answers | None:
    """Return the answer of every sample; None where the task extracts none."""
    if not isinstance(task, VotableTask) or isinstance(task, EpisodeTask):
        return None
    answers: list[list[str | None]] = [[None] * len(examples) for _ in evaluation.rewards]
    places = {example.index: place for place, example in enumerate(examples)}
    for rollout in evaluation.rollouts:
        place = places[rollout.example]
        answer = task.answer_of(rollout.completion.text, examples[place])
        answers[rollout.member][place] = answer
    return answers


def reductions(
    values: Float64[np.ndarray, "samples examples"],
    answers: Answers | None,
    *,
    higher_is_better: bool,
) -> dict[str, Float64[np.ndarray, " examples"]]:
    """Return pass@k or best@k, and majority@k, of each example by name; NaN where one is missing.

    Where lower is better, the best sample is the lowest.
    """
    count, sign = len(values), 1.0 if higher_is_better else -1.0
    known = values[np.isfinite(values)]
    name = "pass" if higher_is_better and np.isin(known, (0.0, 1.0)).all() else "best"
    reduced = {
        f"{name}@{k}": sign * best_of_k(sign * values, k)
        for k in sorted({*(2**power for power in range(count.bit_length())), count})
    }
    if answers is not None and count >= FEWEST_VOTES:
        reduced[f"majority@{count}"] = majority_at_k(values, answers)
    missing = np.isnan(values).any(axis=0)
    return {name: np.where(missing, math.nan, one) for name, one in reduced.items()}
