"""The signals of a run on its page: curves, and a table with the first and the last values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from germline.record.atomic_files import Row
from germline.report.advice import (
    NEARLY_ALL,
    WINDOW,
    has_groups,
    mean,
    percent,
    signal,
    with_update,
)
from germline.report.curves import generations
from germline.report.svg_charts import Chart, Curve, Mark, Number, thin_out
from germline.report.text_format import number
from germline.signal_metrics import signal_to_noise

Write = Callable[[float | None], str]


@dataclass(frozen=True)
class SignalReading:
    """A signal with its means over the first and over the last generations, as text."""

    name: str
    start: str
    end: str
    meaning: str


def signal_charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw the recorded signals: shares, agreement of halves, served weights that change."""
    recorded = [row for row in rows if row.get("signals")]
    drawn = (_shares(recorded), _agreement(recorded), _steps(recorded)) if recorded else ()
    return [chart for chart in drawn if chart]


def walk_chart(distances: Sequence[float | None], edge: float | None) -> list[Chart]:
    """Draw the walk of the updates and the edge, if known; no chart without a walk.

    Args:
        distances: after each generation, in the unit of sigma.
        edge: sigma at which random members break.
    """
    known = [distance for distance in distances if distance]
    if not known:
        return []
    places = [float(place) for place in range(len(distances))]
    marks: list[Mark] = [Curve("walk of the updates", "mean", places, list(distances))]
    against = "germline probe measures where random members break (record.edge in probe.yaml)"
    said = ""
    if edge is not None:
        ends = [places[0], places[-1]]
        marks.append(Curve("edge: random members break", "run-1", ends, [edge, edge]))
        against = f"At the edge, {number(edge)}, random members break, and so does the model"
        said = f" The edge, where random members break, is at {number(edge)}."
    return [
        Chart(
            name="signal-walk",
            caption="Distance of a random walk of the updates, root mean square per weight, in the "
            f"unit of sigma. {against}. If there is a signal, only a part of each step is noise.",
            alt="Line chart of the walk of the updates, which grows to "
            f"{number(known[-1])} in {len(distances)} generations.{said}",
            x_label="generation",
            y_label="walk",
            marks=marks,
        )
    ]


def signal_readings(rows: Sequence[Row]) -> list[SignalReading]:
    """Return each signal at the start and at the end; signals without values are left out."""
    recorded = [row for row in rows if row.get("signals")]
    count = min(WINDOW, -(-len(recorded) // 2))
    found = []
    hidden = OF_REWARDS if has_groups(recorded) else ()
    for name, (words, write, meaning) in MEANINGS.items():
        if name in hidden:
            continue
        ends = [_mean(some, name) for some in (recorded[:count], recorded[-count:])]
        if ends != [None, None]:
            found.append(SignalReading(words, write(ends[0]), write(ends[1]), meaning))
    return found


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """Average a signal; the signal-to-noise ratio is computed from the mean agreement."""
    if name == "signal_to_noise":
        return signal_to_noise(mean(rows, "agreement"))
    if name == "walk":  # It grows, so the latest value is the relevant one.
        return signal(rows[-1], name) if rows else None
    # Generations without a signal have no step and must not lower the mean.
    return mean(with_update(rows) if name.startswith("step.") else rows, name)


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share)


MEANINGS: dict[str, tuple[str, Write, str]] = {
    "groups_without_signal": (
        "prompts whose samples tie",
        _percent,
        "All samples of these prompts earn the same reward, so they do not contribute to the "
        "update. A high share: raise method.temperature or method.group_size, or give partial "
        "credit.",
    ),
    "entropy": (
        "entropy",
        number,
        "Mean negative log-probability of the scored tokens under the center, in nats. Near 0, "
        "samples hardly differ.",
    ),
    "truncated": (
        "truncated samples",
        _percent,
        "Samples that the length limit cut. A high share: raise task.max_new_tokens.",
    ),
    "clipped": (
        "clipped tokens",
        _percent,
        "Scored tokens that no longer count, as the updates of their batch changed their "
        "probability by more than method.clip. A high share: lower method.updates_per_batch.",
    ),
    "sampler_kl": (
        "divergence from the sampler",
        number,
        "KL divergence of the center from the weights that sampled the batch, in nats per token.",
    ),
    "tokens_scored": (
        "tokens scored",
        number,
        "Tokens whose log-probabilities all members and the center computed in a generation.",
    ),
    "informative_examples": (
        "examples that tell members apart",
        _percent,
        "On the other examples all members earn the same reward, so they do not contribute to the "
        "update. A low share: sigma is too small, or the examples are all solved or all too hard.",
    ),
    "informative_pairs": (
        "pairs that differ",
        _percent,
        "Antithetic pairs whose two members differ in fitness; only they contribute to the update.",
    ),
    "tied": (
        "members that tie",
        _percent,
        "Members with the same fitness as another one. A high share: the reward is coarse, or the "
        "batch is small.",
    ),
    "empty": (
        "empty completions",
        _percent,
        "Completions of special tokens only. A high share: the weights that generate are broken "
        "(sigma or the learning rate is too large), or the reward favors empty completions.",
    ),
    "agreement": (
        "agreement of halves",
        number,
        "Cosine of the updates that the two halves of each batch would give. Near 0, an update is "
        "mostly noise of the choice of examples: use more of them. Near 1, fewer are enough.",
    ),
    "signal_to_noise": (
        "signal to noise",
        number,
        "Ratio of powers in the update of the whole batch, computed from the agreement: above 1 "
        "the update is mostly signal.",
    ),
    "signal_share": (
        "signal in the differences",
        number,
        "Share of the differences between members that the choice of examples does not explain; it "
        "is below 0 if chance differences are smaller than expected. learning_rate=auto makes "
        "steps proportional to it.",
    ),
    "directions": (
        "effective directions",
        number,
        "Effective number of directions in the update: if it is far below the number of "
        "directions, a few members dominate (clip or rank the utilities).",
    ),
    "walk": (
        "walk of the updates",
        number,
        "Distance of each weight from its start if the updates were a random walk, root mean "
        "square in the unit of sigma. At the sigma at which random members break, the model breaks "
        "as well.",
    ),
    "step.rank": (
        "effective rank of a step",
        number,
        "Effective rank of the update of a matrix, bounded by the size of the matrix.",
    ),
    "step.rms": (
        "step per weight",
        number,
        "Root mean square over all searched numbers.",
    ),
    "step.in_roundings": (
        "step in roundings",
        number,
        "The same, in spacings of the served dtype, of the median tensor. Below 1 only a part of "
        "an update changes the served weights; the fp32 masters keep the rest, so nothing is lost.",
    ),
    "step.least_in_roundings": (
        "in the slowest tensor",
        number,
        "The same, of the tensor with the smallest relative change.",
    ),
    "step.moved": (
        "served weights changed",
        _percent,
        "Share of the served weights that an update changes, after rounding.",
    ),
}
"""Signal -> its name, the format of its values, and its meaning with a remedy."""


def _shares(rows: Sequence[Row]) -> Chart | None:
    """Draw the shares that carry information; a population of one has few of them."""
    marks: list[Mark] = []
    if has_groups(rows):
        return _groups(rows)
    if any(signal(row, EXAMPLES) is not None for row in rows):
        marks.append(_curve("examples that tell members apart", "run-0", rows, EXAMPLES))
    if any(signal(row, PAIRS) is not None for row in rows):
        marks.append(_curve("pairs that differ", "run-1", rows, PAIRS))
    if any(signal(row, "empty") for row in rows):
        marks.append(_curve("empty completions", "run-3", rows, "empty"))
    if not marks:
        return None
    return Chart(
        name="signal-shares",
        caption="Shares of each generation: examples on which members differ, antithetic pairs "
        "whose members differ, and completions without text.",
        alt="Line chart of the shares of a generation that carry information: examples that tell "
        f"members apart go from {_ends(rows, EXAMPLES, _percent)}, completions without text from "
        f"{_ends(rows, 'empty', _percent)}.",
        x_label="generation",
        y_label="share",
        marks=marks,
    )


def _groups(rows: Sequence[Row]) -> Chart:
    """Draw the shares of prompts and samples of the center that do not inform."""
    marks: list[Mark] = [
        _curve("prompts whose samples tie", "run-0", rows, GROUPS),
        _curve("truncated samples", "run-1", rows, "truncated"),
    ]
    if any(signal(row, "empty") for row in rows):
        marks.append(_curve("empty completions", "run-3", rows, "empty"))
    return Chart(
        name="signal-shares",
        caption="Shares of each generation: prompts whose samples all earn the same reward, which "
        "have no advantage, and samples that the length limit cut.",
        alt="Line chart of shares of a generation: prompts whose samples tie go from "
        f"{_ends(rows, GROUPS, _percent)}, truncated samples from "
        f"{_ends(rows, 'truncated', _percent)}.",
        x_label="generation",
        y_label="share",
        marks=marks,
    )


def _agreement(rows: Sequence[Row]) -> Chart | None:
    values = [signal(row, "agreement") for row in rows]
    if all(value is None for value in values):
        return None
    smooth = [mean(rows[max(0, at + 1 - WINDOW) : at + 1], "agreement") for at in range(len(rows))]
    return Chart(
        name="signal-agreement",
        caption="Agreement of the two halves of each batch: the cosine of the updates they would "
        f"give separately. A single generation is noisy; the heavy line is the mean of {WINDOW}.",
        alt="Line chart of the cosine between the updates that two halves of each batch give; its "
        f"mean goes from {_ends(rows, 'agreement', number)}.",
        x_label="generation",
        y_label="cosine",
        marks=[
            Curve("one generation", "best", generations(rows), thin_out(values)),
            Curve(f"mean of {WINDOW}", "mean", generations(rows), thin_out(smooth)),
        ],
    )


def _steps(rows: Sequence[Row]) -> Chart | None:
    """Draw the share of served weights that change, if it is not always all of them."""
    moved = [signal(row, "step.moved") for row in with_update(rows)]
    if all(share is None or share > NEARLY_ALL for share in moved):
        return None
    return Chart(
        name="signal-steps",
        caption="Share of the served weights that an update changes, after rounding to the dtype "
        "they are served in. The fp32 masters keep smaller changes.",
        alt="Line chart of the share of served weights that each update changes, from "
        f"{_ends(rows, 'step.moved', _percent)}.",
        x_label="generation",
        y_label="share",
        marks=[_curve("served weights changed", "mean", rows, "step.moved")],
    )


EXAMPLES, PAIRS, GROUPS = "informative_examples", "informative_pairs", "groups_without_signal"

OF_REWARDS = (EXAMPLES, PAIRS, "tied")
"""Signals of the rewards of members, which have none where the center's samples are graded."""


def _curve(label: str, tone: str, rows: Sequence[Row], name: str) -> Curve:
    values: list[Number] = [signal(row, name) for row in rows]
    return Curve(label, tone, generations(rows), thin_out(values))


def _ends(rows: Sequence[Row], name: str, write: Write) -> str:
    found = [value for row in rows if (value := signal(row, name)) is not None]
    return f"{write(found[0])} to {write(found[-1])}" if found else "nothing"
