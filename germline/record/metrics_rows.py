"""The rows of generations.jsonl, rollouts.jsonl and held_out.jsonl.

Rows are plain JSON objects for people and plots; rebuilding weights does not need them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from germline.config import Config
from germline.types import Example, Finish, GenerationRecord, HeldOutScore, Rollout

MAX_SAMPLES = 20
"""Number of held-out completions kept with a score."""

SCORER_FIELDS = ("mean", "standard_error", "n", "proportion", "higher_is_better", "values")
"""Fields of a held-out score by a scorer, or of one of `retained`."""

MAX_REASON = 200
"""Characters of a failure reason that identify it; the rest may be text of a completion."""


@dataclass(frozen=True, slots=True)
class HeldOutSample:
    """The center's completion of a held-out prompt; the reward is None if it is missing."""

    prompt: str
    completion: str
    answer: str
    reward: float | None
    turns: Sequence[Mapping[str, Any]] = ()
    ended: str | None = None
    finish: Finish = "eos"
    token_ids: Sequence[int] = ()

    @property
    def transcript(self) -> str:
        """The completion, or the turns of the episode with their authors."""
        return transcript(self.completion, self.turns, self.ended)


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """A recorded held-out score, with samples at the start and the end of a run."""

    score: HeldOutScore
    samples: tuple[HeldOutSample, ...]


def generation_row(record: GenerationRecord) -> dict[str, Any]:
    """Describe one generation in numbers."""
    evaluation = record.evaluation
    seconds = evaluation.decode_seconds
    failures = Counter(
        rollout.grade.failure[:MAX_REASON]
        for rollout in evaluation.rollouts
        if rollout.grade.failure is not None
    )
    row: dict[str, Any] = {
        "generation": record.generation,
        "fitness": fitness_summary(record.fitness),
        "best_member": best_member(record.fitness),
        "utilities_std": float(np.std(record.utilities)),
        "zero_signal": record.signals.zero if record.signals else not any(record.utilities),
        "sigma": mean_sigma(record),
        "learning_rate": getattr(record.update, "learning_rate", None),
        "rollouts": len(evaluation.rollouts),
        "tokens": evaluation.tokens,
        "tokens_per_s": evaluation.tokens / seconds if seconds > 0 else None,
        "timing": dict(record.timing),
        "missing": int(np.isnan(evaluation.rewards).sum()),
        "failures": dict(sorted(failures.items())),
    }
    sigmas, scored = record.sigmas.values(), record.held_out
    more = {
        "step_in_sigmas": getattr(record.update, "step_in_sigmas", None),
        "calibration": [{"sigma": one.sigma, "kl": one.kl} for one in record.calibration] or None,
        "sigmas": {"min": min(sigmas), "max": max(sigmas)} if sigmas else None,
        "signals": asdict(record.signals) if record.signals else None,
        "parts": mean_parts(evaluation.rollouts) or None,
        # held_out.jsonl has the values of examples.
        "held_out": None if scored is None else score_fields(scored, values=False),
        "budget": dict(record.budget) or None,
    }
    row |= {name: value for name, value in more.items() if value is not None}
    return row | dict(record.strategy_metrics)


def mean_sigma(record: GenerationRecord) -> float:
    """Return the sigma of a generation; if tensors have different ones, their geometric mean."""
    if not record.sigmas:
        return record.update.sigma
    return float(np.exp(np.log(list(record.sigmas.values())).mean()))


def calibrated_kl(row: Mapping[str, Any], sigma: float) -> float | None:
    """Return about the KL divergence of members with a sigma, from the trials of a calibration.

    Between two trials the logarithm of the divergence is interpolated over that of sigma; beyond
    all of them, the divergence grows with the square of sigma. None if no trial has a finite
    one above 0.
    """
    trials = ((one["sigma"], one["kl"]) for one in row["calibration"])
    known = sorted((tried, kl) for tried, kl in trials if kl is not None and 0 < kl < math.inf)
    if not known:
        return None
    low, kl_low = max((one for one in known if one[0] <= sigma), default=known[0])
    high, kl_high = min((one for one in known if one[0] >= sigma), default=known[-1])
    if low == high:
        return float(kl_low * (sigma / low) ** 2)
    share = math.log(sigma / low) / math.log(high / low)
    return float(kl_low ** (1 - share) * kl_high**share)


def fitness_summary(fitness: Sequence[float]) -> dict[str, float | None]:
    """Summarize the fitness of members or samples; every entry is None if none is known."""
    known = np.array([one for one in fitness if math.isfinite(one)])
    if not known.size:
        return dict.fromkeys(("mean", "std", "min", "p20", "p80", "max"))
    p20, p80 = np.percentile(known, (20, 80))
    with np.errstate(over="ignore"):  # rewards near the limit of float64 give null in the row
        mean, std = float(known.mean()), float(known.std())
    return {
        "mean": mean,
        "std": std,
        "min": float(known.min()),
        "p20": float(p20),
        "p80": float(p80),
        "max": float(known.max()),
    }


def mean_parts(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the mean of each rubric part over the rollouts in which it is known (NaN: in none).

    A part that is alone is the reward, and is left out.
    """
    values: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in rollout.grade.parts.items():
            values.setdefault(name, []).append(float(value))
    if len(values) < 2:
        return {}
    known = {name: [one for one in some if math.isfinite(one)] for name, some in values.items()}
    return {name: math.fsum(some) / len(some) if some else math.nan for name, some in known.items()}


def best_member(fitness: Sequence[float]) -> int | None:
    """Return the fittest member, the first of equal ones; None if no fitness is known."""
    known = [index for index, one in enumerate(fitness) if math.isfinite(one)]
    return max(known, key=lambda index: fitness[index], default=None)


def rollout_rows(
    record: GenerationRecord, batch: Sequence[Example], limit: int
) -> list[dict[str, Any]]:
    """Return rows of at most `limit` rollouts, evenly spread from the best to the worst."""
    examples = {example.index: example for example in batch}
    return [
        {
            "generation": record.generation,
            "member": rollout.member,
            "example": rollout.example,
            "tokens": len(rollout.completion.tokens),
            "finish": rollout.completion.finish,
            **rollout_fields(rollout, examples[rollout.example]),
        }
        for rollout in spread_by_reward(record.evaluation.rollouts, limit)
    ]


def rollout_fields(rollout: Rollout, example: Example) -> dict[str, Any]:
    """Describe a completion, or an episode, and its grade."""
    return {
        "prompt": example.prompt,
        "completion": rollout.completion.text,
        "reward": rollout.grade.reward,
        "parts": dict(rollout.grade.parts),
        "failure": rollout.grade.failure,
        **episode_fields(rollout),
    }


def signal(row: Mapping[str, Any], name: str) -> float | None:
    """Return a signal of a generation, such as `agreement`; None if it has none."""
    # Of the method, or measured for all.
    value = row[name] if name in row else (row.get("signals") or {}).get(name)
    return None if value is None else float(value)


def mean_signal(rows: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Average a signal over the rows that have it."""
    known = [value for row in rows if (value := signal(row, name)) is not None]
    return sum(known) / len(known) if known else None


def has_groups(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rewards are those of samples of the center, in groups of the same prompt."""
    return any("groups_without_signal" in row for row in rows)


def batch_examples(rows: Sequence[Mapping[str, Any]], config: Config) -> int:
    """Return the examples of a generation: `batch_size`, or all where the task has fewer."""
    members, generated = config.strategy.population, rows[-1]["rollouts"] if rows else 0
    if not generated or not members:
        return config.batch_size
    return min(config.batch_size, generated // config.method.generated_rows(members))


def episode_fields(rollout: Rollout) -> dict[str, Any]:
    """Describe the turns of an episode, and why it ended; nothing of a single completion."""
    if rollout.ended is None:
        return {}
    turns = [
        {"role": turn.role, "content": turn.content, "tokens": len(turn.tokens)}
        for turn in rollout.turns
    ]
    return {"turns": turns, "ended": rollout.ended}


def transcript(completion: str, turns: Sequence[Mapping[str, Any]], ended: str | None) -> str:
    """Return a completion, or the turns of an episode with their authors."""
    if not turns:
        return completion
    authors = {"assistant": "model", "user": "environment"}
    lines = [f"{authors[turn['role']]}: {turn['content']}" for turn in turns]
    return "\n".join([*lines, f"(ended: {ended})"])


def rollout_text(rollout: Rollout) -> str:
    """Return the completion, or the turns of an episode with their authors."""
    turns = episode_fields(rollout).get("turns", ())
    return transcript(rollout.completion.text, turns, rollout.ended)


def paired_samples(
    before: Sequence[HeldOutSample], after: Sequence[HeldOutSample]
) -> list[tuple[HeldOutSample, HeldOutSample | None]]:
    """Pair the samples of two scores by prompt; those of equal prompts by their order."""
    later: dict[str, list[HeldOutSample]] = {}
    for sample in reversed(after):
        later.setdefault(sample.prompt, []).append(sample)
    return [
        (sample, later[sample.prompt].pop() if later.get(sample.prompt) else None)
        for sample in before
    ]


def spread_by_reward(rollouts: Sequence[Rollout], limit: int) -> list[Rollout]:
    """Choose rollouts evenly by rank of reward; missing rewards are last, ties keep their order."""

    def rank(rollout: Rollout) -> tuple[float, int, int]:
        reward = rollout.grade.reward
        return (math.inf if math.isnan(reward) else -reward, rollout.member, rollout.example)

    ranked = sorted(rollouts, key=rank)
    count = min(limit, len(ranked))
    places = np.linspace(0, len(ranked) - 1, count).round().astype(int)
    return [ranked[place] for place in places]


def held_out_row(
    score: HeldOutScore, rollouts: Sequence[Rollout] = (), examples: Sequence[Example] = ()
) -> dict[str, Any]:
    """Describe a held-out score and the first of its completions."""
    by_index = {example.index: example for example in examples}
    samples = [
        {
            "prompt": by_index[rollout.example].prompt,
            "completion": rollout.completion.text,
            "answer": by_index[rollout.example].answer,
            "reward": rollout.grade.reward,
            "finish": rollout.completion.finish,
            "token_ids": rollout.completion.tokens,
            **episode_fields(rollout),
        }
        for rollout in rollouts[:MAX_SAMPLES]
    ]
    return score_fields(score) | {"completions": samples}


def score_fields(score: HeldOutScore, *, values: bool = True) -> dict[str, Any]:
    """Describe a held-out score; without scorers or parts, as before there were any.

    Samples (`at_k`) are those of an evaluation, and `forgot` depends on the present config.
    """

    def brief(one: HeldOutScore) -> dict[str, Any]:
        return {name: getattr(one, name) for name in SCORER_FIELDS if values or name != "values"}

    more = {
        "scorers": {one.metric: brief(one) for one in score.scorers},
        "rewards": score.rewards if score.scorers and values else (),
        "parts": dict(score.parts),
        "behavior": dict(score.behavior),
        "retained": {
            name: {"metric": one.metric, **brief(one)} for name, one in score.retained.items()
        },
    }
    fields = {name: getattr(score, name) for name in ("generation", "metric", "reward")}
    return {**fields, **brief(score), **{name: value for name, value in more.items() if value}}


def scores_by_scorer(scores: Sequence[HeldOutScore]) -> dict[str, list[HeldOutScore]]:
    """Return the scores by each of `held_out.scorers` that could be computed, in order."""
    found: dict[str, list[HeldOutScore]] = {}
    for one in (one for score in scores for one in score.scorers):
        if one.n:
            found.setdefault(one.metric, []).append(one)
    return found


def scores_by_retained(scores: Sequence[HeldOutScore]) -> dict[str, list[HeldOutScore]]:
    """Return the scores of each of `retained` that could be computed, in order."""
    found: dict[str, list[HeldOutScore]] = {}
    for name, one in (item for score in scores for item in score.retained.items()):
        if one.n:
            found.setdefault(name, []).append(one)
    return found


def read_held_out_row(row: Mapping[str, Any]) -> HeldOutRow:
    """Read a row that `held_out_row` wrote."""
    read = {name: _known(value) for name, value in row.items() if name != "completions"}
    scorers, retained = (
        {
            name: HeldOutScore(
                **{"generation": row["generation"], "metric": name, "reward": one["mean"], **one}
            )
            for name, one in read.get(group, {}).items()
        }
        for group in ("scorers", "retained")
    )
    score = HeldOutScore(**read | {"scorers": tuple(scorers.values()), "retained": retained})
    return HeldOutRow(score, tuple(HeldOutSample(**one) for one in row["completions"]))


def _known(value: Any) -> Any:
    """Read a value; JSON has no NaN: what could not be computed was written as null."""
    if isinstance(value, Mapping):
        return {name: _known(one) for name, one in value.items()}
    if isinstance(value, list):
        return tuple(map(_known, value))
    return math.nan if value is None else value
