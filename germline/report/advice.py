"""What the signals of a run say in words: where something is wrong, and what helps.

Advice reads the rows of the latest generations, so that a live view and a page give the same. The
thresholds are rules of thumb, set where the shipped tasks on the nano model still learn; each
sentence names what was found, for a reader to judge.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from germline.record.atomic_files import Row
from germline.report.text_format import escape_control_characters

WINDOW = 10
"""Generations that advice looks back on: a single one says little about agreement."""

QUIET = 3
"""Generations without a signal, in a row, that are no accident any more."""

NEARLY_ALL = 0.99
"""Share of the served weights that move, beyond which it is not worth a word."""

FEW_EXAMPLES, HARDLY_AGREEING, HARDLY_MOVING = 0.1, 0.05, 0.01
MOSTLY_EMPTY, MANY_LOST = 0.5, 0.1


def advice(rows: Sequence[Row]) -> dict[str, str]:
    """Say what is wrong with the signal of the latest generations, the gravest first, by subject.

    Args:
        rows: generations in order, as `record.metrics_rows.generation_row` describes them; those of
            older germlines have no signals, and nothing is said about them.
    """
    latest = [row for row in rows[-WINDOW:] if row.get("signals")]
    found = {about: look(latest) for about, look in LOOKS.items()} if latest else {}
    return {about: sentence for about, sentence in found.items() if sentence}


def mean(rows: Iterable[Row], name: str) -> float | None:
    """Average one of the signals over the rows that have it; `step.moved` is one of the step's."""
    known = [value for row in rows if (value := signal(row, name)) is not None]
    return sum(known) / len(known) if known else None


def signal(row: Row, name: str) -> float | None:
    """Return one of the signals of a generation; None where it has none."""
    found: Any = row.get("signals")
    for part in name.split("."):
        found = (found or {}).get(part)
    return None if found is None else float(found)


def with_update(rows: Sequence[Row]) -> list[Row]:
    """Leave out the generations that taught nothing, and so had no step."""
    return [row for row in rows if not row["zero_signal"]]


def percent(share: float) -> str:
    """Write a share with the digits that tell it from nothing and from everything."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.5 or value == 0 else f"{value:.2g} %"


def _quiet(rows: Sequence[Row]) -> str | None:
    count = int(signal(rows[-1], "zeros_in_a_row") or 0)
    if count < QUIET:
        return None
    alone = signal(rows[-1], "informative_examples") is None
    why = "each is as good as the running mean" if alone else "all members are equally good"
    return (
        f"no signal for {count} generations, {why}: a larger sigma (of sigma=auto, a larger "
        "strategy.sigma.max_kl), or more or other examples; "
        "see germline probe"
    )


def _empty(rows: Sequence[Row]) -> str | None:
    share = mean(rows, "empty") or 0.0
    if share < MOSTLY_EMPTY:
        return None
    return (
        f"{percent(share)} of the completions are empty: a smaller sigma, unless the task asks "
        "for silence; does the reward favor it?"
    )


def _lost(rows: Sequence[Row]) -> str | None:
    played = sum(row["rollouts"] for row in rows)
    failed = sum(sum(row["failures"].values()) for row in rows)
    if failed <= MANY_LOST * played:
        return None
    reason = max(
        (reason for row in rows for reason in row["failures"]),
        key=lambda reason: sum(row["failures"].get(reason, 0) for row in rows),
    )
    shown = escape_control_characters(reason[:60])
    return f"{percent(failed / played)} of the completions were not graded ({shown})"


def _few_examples(rows: Sequence[Row]) -> str | None:
    share = mean(rows, "informative_examples")
    if share is None or share >= FEW_EXAMPLES or _quiet(rows):
        return None
    return (
        f"members differ on {percent(share)} of the examples: a larger sigma, or examples that "
        "are neither solved nor hopeless"
    )


def _disagreeing(rows: Sequence[Row]) -> str | None:
    known = [row for row in rows if signal(row, "agreement") is not None]
    found = mean(known, "agreement")
    if found is None or len(known) < WINDOW or found >= HARDLY_AGREEING:
        return None
    return (
        f"the two halves of a batch hardly agree (cosine {found:.2f}), so most of an update is "
        "noise: learning_rate=auto, more examples in a batch, or a larger sigma"
    )


def _standing_still(rows: Sequence[Row]) -> str | None:
    share = mean(with_update(rows), "step.moved")
    if share is None or share >= HARDLY_MOVING:
        return None
    return (
        f"an update moves {percent(share)} of the served weights, whose dtype does not show the "
        "rest yet: nothing is lost, but a larger learning rate shows sooner"
    )


LOOKS: Mapping[str, Callable[[Sequence[Row]], str | None]] = {
    "no signal": _quiet,
    "empty": _empty,
    "lost": _lost,
    "examples": _few_examples,
    "agreement": _disagreeing,
    "moved": _standing_still,
}
"""What is looked for, the gravest first."""
