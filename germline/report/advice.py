"""Advice on a run's signals: what is wrong in the latest generations, and what helps.

Advice is computed from the rows of the latest generations, so a training and its page give the same
advice. The thresholds are rules of thumb, set where the shipped tasks on the nano model still
learn; each sentence contains the measured value, so that a reader can judge it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from germline.config import Config
from germline.record.atomic_files import Row
from germline.report.text_format import escape_control_characters, number

LONGEST_REASON = 60
"""Characters of a failure's reason that advice shows."""

WINDOW = 10
"""Number of latest generations that are averaged: the agreement of a single one is too noisy."""

QUIET = 3
"""Number of generations without a signal, or with little of it, from which on advice is given."""

NEARLY_ALL = 0.99
"""Share of the served weights that an update changes, above which it is not shown."""

SOLVED = 1.0
"""Mean fitness from which on examples on which no member differs count as solved."""

NEARLY_SOLVED = 0.9
"""Mean fitness from which on little is left to learn, if no member earns more than `SOLVED`."""

ALL = "all members"

LARGER_SIGMA = "a larger sigma (with sigma=auto, a larger strategy.sigma.target_kl)"

MAKE_MEMBERS_DIFFER = "More examples per batch, or a larger sigma, make members differ."

SAMPLES_TIE = (
    "raise method.temperature or method.group_size, give partial credit, use examples that the "
    "model solves some of the time, or raise task.max_new_tokens where samples are cut"
)

TOO_HARD = (
    "the examples may be too hard for the model. Use easier ones first, examples in the prompt or "
    "a reward for parts of an answer; or a larger batch and population, so that a rare success is "
    "seen; germline generate shows what it writes"
)
LOST = (
    "earlier generations earned more, so the model has lost what it could do. Continue from the "
    "best weights with a lower learning rate"
)
ROSE_TO_ZERO = (
    "earlier generations earned less. If 0 is the highest reward, the examples are solved: stop "
    "here, or train on harder ones; if the reward can exceed 0, use easier examples first"
)

FEW_EXAMPLES, FEW_PAIRS, LOW_AGREEMENT, FEW_CHANGED = 0.1, 0.3, 0.05, 0.01
MOSTLY_EMPTY, MOSTLY_FAILED, MANY_FAILED = 0.5, 0.5, 0.1


def advice(rows: Sequence[Row]) -> dict[str, str]:
    """Return advice on the signal of the latest generations by subject, the most serious first.

    Args:
        rows: generations in order, as `record.metrics_rows.generation_row` describes them. Rows
            that older versions of germline wrote have no signals and are left out.
    """
    latest = [row for row in rows[-WINDOW:] if row.get("signals")]
    sentences = {about: check(latest) for about, check in CHECKS.items()} if latest else {}
    if sentences.get("no signal"):
        sentences["no signal"] = _ties(latest, zero_because=_why_zero(rows))
    return {about: sentence for about, sentence in sentences.items() if sentence}


def mean(rows: Iterable[Row], name: str) -> float | None:
    """Average a signal, such as `agreement` or `step.moved`, over the rows that have it."""
    known = [value for row in rows if (value := signal(row, name)) is not None]
    return sum(known) / len(known) if known else None


def signal(row: Row, name: str) -> float | None:
    """Return a signal of a generation, or None if the generation does not have it."""
    value: Any = row.get("signals")
    if name in row:  # of the method, such as `groups_without_signal`
        value = row
    for part in name.split("."):
        value = (value or {}).get(part)
    return None if value is None else float(value)


def with_update(rows: Sequence[Row]) -> list[Row]:
    """Return the generations with an update: those without a signal have none."""
    return [row for row in rows if not row["zero_signal"]]


def without_update(rows: Sequence[Row], config: Config) -> str:
    """Say in how many generations no update was made as members did not differ; empty for none.

    A remedy is named where the examples are not solved and there is no other advice. A run whose
    members are not compared with each other has none.
    """
    silent = [row for row in rows if row["zero_signal"]]
    if not silent or not compares_members(config):
        return ""
    solved = sum(_is_solved(row) for row in silent)
    some = f"{len(silent)} of {len(rows)} generations"
    which = "every generation" if len(silent) == len(rows) else some
    sentence = f"In {which} {_equal_members(silent)} had the same fitness, so no update was made."
    means = {row["fitness"]["mean"] for row in rows}
    if len(silent) == len(rows) and len(means) == 1 and _equal_members(silent) == ALL:
        return (
            f"{sentence} The fitness was {number(means.pop())} throughout: if the answers differ, "
            "the reward does not tell them apart (`germline check task` tries it); if it does, the "
            "examples are solved or too hard."
        )
    if not solved:
        differ = f"To change that, {SAMPLES_TIE}." if _samples_tie(silent) else MAKE_MEMBERS_DIFFER
        remedy = "" if advice(rows) else f" {differ}"
        return f"{sentence}{remedy}"
    share = "" if solved == len(silent) else f" in {solved} of them"
    return (
        f"{sentence} They did not differ{share} because the examples were solved: the mean "
        f"fitness was {number(SOLVED)} or more."
    )


def _equal_members(silent: Sequence[Row]) -> str:
    """Say which members have the same fitness in generations without an update.

    Only the two members of an antithetic pair are compared: where they are equal, pairs may differ.
    Where the center's samples are graded, members differ only if samples of a prompt do.
    """
    if has_groups(silent):
        return "all samples of each prompt" if _samples_tie(silent) else "all members"
    differ = any(row["fitness"]["min"] != row["fitness"]["max"] for row in silent)
    return "the two members of every antithetic pair" if differ else ALL


def has_groups(rows: Sequence[Row]) -> bool:
    """Whether the rewards of generations are those of samples of the center, in groups."""
    return any("groups_without_signal" in row for row in rows)


def _samples_tie(rows: Sequence[Row]) -> bool:
    """Whether all samples of every prompt earn the same reward in all generations."""
    return all(signal(row, "groups_without_signal") == 1 for row in rows)


def compares_members(config: Config) -> bool:
    """Whether members are compared with each other; a single one is with a running mean."""
    return config.strategy.population != 1


def percent(share: float) -> str:
    """Format a share in percent, small ones with two significant digits."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.5 or value == 0 else f"{value:.2g} %"


def failed_share(rows: Sequence[Row]) -> tuple[float, str]:
    """Return the share of completions whose grading failed, and the most frequent reason."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["failures"])
    rollouts = sum(row.get("rollouts", 0) for row in rows)
    if not counts or not rollouts:
        return 0.0, ""
    reason = counts.most_common(1)[0][0]
    return counts.total() / rollouts, escape_control_characters(reason)


def _solved(rows: Sequence[Row]) -> str:
    """Return advice for examples that seem to be solved; empty where they do not."""
    if not _is_solved(rows[-1]):
        return ""
    fitness = number(rows[-1]["fitness"]["mean"])
    return (
        f"a mean fitness of {fitness} suggests that the examples are solved: stop here, or "
        "train on harder ones"
    )


def _nearly_solved(rows: Sequence[Row]) -> str:
    """Return advice for examples that members seldom get wrong; empty where they do not.

    Without wrong answers there is nothing to agree on, and neither sigma nor the batch helps.
    """
    means = [row["fitness"]["mean"] for row in rows if row["fitness"]["mean"] is not None]
    best = max((row["fitness"]["max"] or 0.0 for row in rows), default=0.0)
    average = sum(means) / len(means) if means else 0.0
    if best != SOLVED or average < NEARLY_SOLVED:
        return ""
    who = "samples" if has_groups(rows) else "members"
    return (
        f"with a mean fitness of {number(average)}, where the best {who} have {number(best)}, "
        "little is left to learn: stop here, or train on harder examples"
    )


def _is_solved(row: Row) -> bool:
    """Whether the mean fitness of a generation suggests that its examples are solved."""
    fitness = row["fitness"]["mean"]
    return fitness is not None and fitness >= SOLVED


def _is_fitness_zero(row: Row) -> bool:
    """Whether every member of a generation has a fitness of 0, as if nothing was right."""
    return row["fitness"]["min"] == row["fitness"]["max"] == 0


def _no_signal(rows: Sequence[Row], zero_because: str) -> str | None:
    count = int(signal(rows[-1], "zeros_in_a_row") or 0)
    if count < QUIET or _mostly_failed(rows[-count:]):
        return None
    if _samples_tie(rows[-count:]):
        equal = f"no signal for {count} generations, all samples of a prompt earn the same reward"
        return f"{equal}: {_solved(rows) or SAMPLES_TIE}"
    alone = signal(rows[-1], "informative_examples") is None
    equal = f"{_equal_members(rows[-1:])} have the same fitness"
    why = "each equals the running mean" if alone else equal
    if not alone and all(_is_fitness_zero(row) for row in rows[-count:]):
        return f"no signal for {count} generations, every member has a fitness of 0: {zero_because}"
    remedy = _solved(rows) or f"use {LARGER_SIGMA}, or more or other examples; see germline probe"
    return f"no signal for {count} generations, {why}: {remedy}"


def _why_zero(rows: Sequence[Row]) -> str:
    """Return why every member may have a fitness of 0, given the fitness of all generations."""
    if any((row["fitness"]["max"] or 0.0) > 0 for row in rows):
        return LOST
    earned_less = any((row["fitness"]["min"] or 0.0) < 0 for row in rows)
    return ROSE_TO_ZERO if earned_less else TOO_HARD


def _empty(rows: Sequence[Row]) -> str | None:
    share = mean(rows, "empty") or 0.0
    if share < MOSTLY_EMPTY:
        return None
    sigma = "" if has_groups(rows) else "use a smaller sigma, and "
    return (
        f"{percent(share)} of the completions are empty: {sigma}check that the reward does not "
        "favor an empty completion"
    )


def _failed(rows: Sequence[Row]) -> str | None:
    share, reason = failed_share(rows[-1:])
    which = "the last generation"
    if share <= MANY_FAILED:
        share, reason = failed_share(rows)
        which = f"the last {len(rows)} generations"
    if share <= MANY_FAILED:
        return None
    failed = f"the grading of {percent(share)} of the completions of {which} failed"
    return f"{failed} ({reason[:LONGEST_REASON]}){_grown_sigma(rows)}"


def _mostly_failed(rows: Sequence[Row]) -> bool:
    """Whether most gradings of generations failed, which is why their members do not differ."""
    return failed_share(rows)[0] > MOSTLY_FAILED


def _grown_sigma(rows: Sequence[Row]) -> str:
    """Say that an automatic sigma grew as gradings failed; empty where it did not."""
    failed = [row for row in rows if _mostly_failed([row])]
    if not failed or not _mostly_failed(rows[-1:]) or rows[-1]["sigma"] <= failed[0]["sigma"]:
        return ""
    first, grown = failed[0], number(rows[-1]["sigma"])
    return (
        f"; sigma grew from {number(first['sigma'])} to {grown} meanwhile, as members whose "
        f"grading fails do not differ: germline resume RUN --from {first['generation'] - 1} goes "
        "back to before that"
    )


def _ties(rows: Sequence[Row], zero_because: str = TOO_HARD) -> str | None:
    return _no_signal(rows, zero_because) or _few_examples(rows)


def _few_examples(rows: Sequence[Row]) -> str | None:
    tied = mean(rows, "groups_without_signal")
    share = mean(rows, "informative_examples") if tied is None else 1 - tied
    # Later, pairs also tie because nearly everything is learned.
    pairs = mean(rows, "informative_pairs") if tied is None and len(rows) < WINDOW else None
    if share is None or len(rows) < QUIET or _mostly_failed(rows[-1:]):
        return None
    larger = f"use {LARGER_SIGMA}, or examples that the model solves some of the time"
    who, differ = ("members", larger) if tied is None else ("samples", SAMPLES_TIE)
    remedy = _solved(rows) or _nearly_solved(rows) or differ
    if share < FEW_EXAMPLES:
        return f"{who} differ on {percent(share)} of the examples: {remedy}"
    if pairs is not None and pairs < FEW_PAIRS:
        return f"the two members of {percent(1 - pairs)} of the antithetic pairs tie: {remedy}"
    return None


def _low_agreement(rows: Sequence[Row]) -> str | None:
    known = [row for row in rows if signal(row, "agreement") is not None]
    agreement = mean(known, "agreement")
    if agreement is None or len(known) < QUIET or _ties(rows):
        return None
    # K directions with Gaussian coefficients count as K / 3 effective ones.
    directions = 3 * (mean(known, "directions") or 1)
    noise = 0 if len(known) == WINDOW else 1 / math.sqrt(len(known) * directions)
    if agreement >= LOW_AGREEMENT - noise:
        return None
    # A learning rate that differs between generations is automatic already, or scheduled.
    fixed = len({row.get("learning_rate") for row in known}) == 1
    shorter = "learning_rate=auto, " if fixed else ""
    groups = "method.group_size or method.rows_per_member"
    members = groups if has_groups(known) else "strategy.population"
    remedy = _nearly_solved(known) or f"use {shorter}a larger batch_size or {members}"
    return (
        f"the updates of the two halves of a batch hardly agree (cosine {agreement:.2f}), so an "
        f"update is mostly noise: {remedy}"
    )


def _few_weights_changed(rows: Sequence[Row]) -> str | None:
    share = mean(with_update(rows), "step.moved")
    if share is None or share >= FEW_CHANGED:
        return None
    return (
        f"an update changes {percent(share)} of the served weights; the rest is below the "
        "precision of their dtype. The fp32 masters keep it, so nothing is lost, but a larger "
        "learning rate has an effect sooner"
    )


CHECKS: Mapping[str, Callable[[Sequence[Row]], str | None]] = {
    "no signal": _ties,
    "empty": _empty,
    "failed": _failed,
    "agreement": _low_agreement,
    "moved": _few_weights_changed,
}
"""Subject -> check, the most serious first."""
