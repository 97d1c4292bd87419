"""The rules behind `findings`: each looks at recorded rows alone and yields what it finds.

The thresholds are rules of thumb, set where the shipped tasks on the nano model still learn.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from germline.config import Config
from germline.evaluation import mean_and_error
from germline.evaluation.score_difference import (
    ScoreDecline,
    find_score_decline,
    is_clearly_better,
    p_of_mean,
    paired_difference,
    paired_values,
)
from germline.record.atomic_files import Row
from germline.record.best_generation import best_score
from germline.record.metrics_rows import scores_by_scorer
from germline.report.text_format import escape_control_characters, number, signed
from germline.types import HeldOutScore

WINDOW = 10
"""Number of latest generations that are averaged: the agreement of a single one is too noisy."""

QUIET = 3
"""Number of generations without a signal, or with little of it, from which on it is a finding."""

FEW_EXAMPLES, FEW_PAIRS, LOW_AGREEMENT, FEW_CHANGED = 0.1, 0.3, 0.05, 0.01
MANY_FAILED, MANY_EMPTY, MANY_TRUNCATED = 0.1, 0.5, 0.5

NEAR_THE_EDGE = 0.8
"""Share of the edge from which on the walk is a finding; the edge is known only roughly."""

RISE_ALPHA = 0.05
"""p-value from which on a reward has risen, where a score of the same completions declined."""

LONGEST_REASON = 60

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """What a run has recorded, as far as rules look at it.

    Attributes:
        rows: of generations.jsonl, in order.
        scores: held out, in order.
        rollouts: rows of rollouts.jsonl.
        is_fork: whether the run began from the weights of another one.
    """

    config: Config
    rows: Sequence[Row] = ()
    scores: Sequence[HeldOutScore] = ()
    rollouts: Iterable[Row] = ()
    is_fork: bool = False

    @property
    def latest(self) -> list[Row]:
        """The latest generations that have signals."""
        return [row for row in self.rows[-WINDOW:] if row.get("signals")]


def signal(row: Row, name: str) -> float | None:
    """Return a signal of a generation, such as `agreement` or `step.moved`; None if it has none."""
    value: Any = row if name in row else row.get("signals")  # of the method, or measured for all
    for part in name.split("."):
        value = (value or {}).get(part)
    return None if value is None else float(value)


def mean_signal(rows: Iterable[Row], name: str) -> float | None:
    """Average a signal over the rows that have it."""
    known = [value for row in rows if (value := signal(row, name)) is not None]
    return sum(known) / len(known) if known else None


def has_groups(rows: Sequence[Row]) -> bool:
    """Whether rewards are those of samples of the center, in groups of the same prompt."""
    return any("groups_without_signal" in row for row in rows)


def with_update(rows: Iterable[Row]) -> list[Row]:
    """Return the generations with an update: those without a signal have none."""
    return [row for row in rows if not row["zero_signal"]]


def failed_share(rows: Sequence[Row]) -> tuple[float, str]:
    """Return the share of completions whose grading failed, and the most frequent reason."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["failures"])
    rollouts = sum(row.get("rollouts", 0) for row in rows)
    if not counts or not rollouts:
        return 0.0, ""
    reason = counts.most_common(1)[0][0][:LONGEST_REASON]
    return counts.total() / rollouts, escape_control_characters(reason)


def failed(run: Recorded) -> Iterator[Values]:
    """Find gradings that failed in the latest generations."""
    share, reason = failed_share(run.rows[-WINDOW:])
    if share > MANY_FAILED:
        yield {"share": share, "reason": reason}


def ties(run: Recorded) -> Iterator[Values]:
    """Find generations whose members, or samples of a prompt, hardly differ in reward."""
    rows, groups = run.latest, has_groups(run.latest)
    if not rows:
        return
    silent = int(signal(rows[-1], "zeros_in_a_row") or 0)
    tied = mean_signal(rows, "groups_without_signal")
    informative = mean_signal(rows, "informative_examples") if tied is None else 1 - tied
    pairs = mean_signal(rows, "informative_pairs") if len(run.rows) < WINDOW else None
    few = (informative is not None and informative < FEW_EXAMPLES) or (
        pairs is not None and pairs < FEW_PAIRS and not groups
    )
    if silent >= QUIET or (few and len(rows) >= QUIET):
        yield {
            "silent": silent,
            "examples_share": informative,
            "pairs_share": pairs,
            "fitness": rows[-1]["fitness"]["mean"],
            "who": "samples" if groups else "members",
            "remedy": "raise method.temperature or method.group_size"
            if groups
            else "use a larger sigma (with sigma=auto, strategy.sigma.target_kl)",
        }


def agreement(run: Recorded) -> Iterator[Values]:
    """Find halves of a batch whose updates do not agree."""
    known = [row for row in run.latest if signal(row, "agreement") is not None]
    agreement = mean_signal(known, "agreement")
    if agreement is None or len(known) < QUIET:
        return
    # K directions with Gaussian coefficients count as K / 3 effective ones.
    directions = 3 * (mean_signal(known, "directions") or 1)
    noise = 0 if len(known) == WINDOW else 1 / math.sqrt(len(known) * directions)
    if agreement < LOW_AGREEMENT - noise:
        members = "method.group_size" if has_groups(known) else "strategy.population"
        yield {"agreement": agreement, "members": members}


def empty(run: Recorded) -> Iterator[Values]:
    """Find generations whose completions are mostly empty."""
    share = mean_signal(run.latest, "empty") or 0.0
    if share >= MANY_EMPTY:
        yield {"share": share}


def small_steps(run: Recorded) -> Iterator[Values]:
    """Find updates that hardly change the served weights."""
    share = mean_signal(with_update(run.latest), "step.moved")
    if share is not None and share < FEW_CHANGED:
        yield {"share": share}


def walk(run: Recorded) -> Iterator[Values]:
    """Find updates whose noise has moved the weights as far as random noise that breaks a model."""
    edge = run.config.record.edge
    walk = signal(run.latest[-1], "walk") if run.latest else None
    if edge is not None and walk is not None and walk >= NEAR_THE_EDGE * edge:
        yield {"walk": walk, "edge": edge}


def decline(run: Recorded) -> Iterator[Values]:
    """Find a held-out score that has declined since its best one."""
    found = find_score_decline(run.scores) if run.config.method.trains_center else None
    if found:
        yield _of_decline(found, run.scores[0].metric)


def divergence(run: Recorded) -> Iterator[Values]:
    """Find scores that decline while the reward of the same completions, or the fitness, rises."""
    if not run.scores:
        return
    by_name = {run.scores[0].metric: run.scores, **scores_by_scorer(run.scores)}
    for name, scores in by_name.items():
        found = find_score_decline(scores)
        if found and (risen := _risen(run, found.since)):
            yield {**_of_decline(found, name), "risen": risen}


def _risen(run: Recorded, since: int) -> str:
    """Return which reward has risen since an update; empty for none."""
    rewards = {score.generation: score for score in run.scores}
    before, now = rewards[since], rewards[run.scores[-1].generation]
    if p_of_mean(paired_values(now.rewards, before.rewards)) <= RISE_ALPHA:
        return "reward of the same completions"
    fitness = [row["fitness"]["mean"] for row in run.rows]
    was, latest = fitness[:since][-WINDOW:], fitness[since:][-WINDOW:]
    return "training fitness" if _is_higher(latest, was) else ""


def _is_higher(values: Sequence[float | None], others: Sequence[float | None]) -> bool:
    """Whether the mean of some values exceeds that of others by two standard errors."""
    some = [[one for one in part if one is not None] for part in (values, others)]
    if min(map(len, some)) < 2:
        return False
    (mean, error), (other, other_error) = map(mean_and_error, some)
    return mean - other > 2 * math.hypot(error, other_error)


def _of_decline(found: ScoreDecline, metric: str) -> dict[str, Any]:
    return {"metric": metric.replace("_", " "), **asdict(found)}


def not_learned(run: Recorded) -> Iterator[Values]:
    """Find a best score that is not clearly better than that before training."""
    best = best_score(run.scores)
    if best is None or len(run.scores) < 2:
        return
    start, last = run.scores[0], run.scores[-1]
    if is_clearly_better(best, start):
        return
    found = paired_difference(last, start)
    yield {
        "metric": start.metric.replace("_", " "),
        "before": start.mean,
        "after": last.mean,
        "difference": signed(found.mean) if found else signed(last.mean - start.mean),
        "interval": "{} to {}".format(*map(signed, found.interval)) if found else "unknown",
        "rewards": [start.reward, last.reward],
    }


def solved(run: Recorded) -> Iterator[Values]:
    """Find held-out examples that are all right."""
    last = run.scores[-1] if run.scores else None
    if last is not None and last.proportion and last.mean == 1:
        yield {"metric": last.metric.replace("_", " "), "examples": last.n}


def random_reward(run: Recorded) -> Iterator[Values]:
    """Find two members whose same answer to an example of a generation earned different rewards.

    Episodes, failed gradings, rewards minus a divergence (`task.kl_coef`) and rewards of scorers,
    which may compare completions with each other, are not compared.
    """
    if run.config.task.kl_coef is not None or run.config.task.scorers:
        return
    seen: dict[tuple[Any, ...], Row] = {}
    for row in run.rollouts:
        if row["failure"] is not None or "turns" in row:
            continue
        names = ("generation", "example", "completion", "tokens", "finish")
        other = seen.setdefault(tuple(row[name] for name in names), row)
        if other["reward"] != row["reward"]:
            yield {
                "generation": row["generation"],
                "members": f"{other['member']} and {row['member']}",
                "rewards": f"{number(other['reward'])} and {number(row['reward'])}",
            }
            return


def random_start(run: Recorded) -> Iterator[Values]:
    """Find a score before training that is not that of the base model.

    A LoRA adapter whose B is 0 starts at the base model, but then A has no effect on the fitness of
    the first generation. `space.init_scale_b` is 0.01 by default, and both matrices are drawn from
    the run seed. (Measured on 188 examples of arithmetic with the nano model: 0.255 for the base
    model and with B = 0, 0.266 and 0.239 with B of seeds 0 and 1.)
    """
    if run.config.space.starts_at_random and not run.is_fork:
        yield {}


def truncated(run: Recorded) -> Iterator[Values]:
    """Find completions of the last generation that the length limit cut."""
    rows = list(run.rollouts)
    latest = [row for row in rows if row["generation"] == rows[-1]["generation"]]
    share = sum(row["finish"] == "length" for row in latest) / max(1, len(latest))
    if share >= MANY_TRUNCATED:
        yield {"share": share}
