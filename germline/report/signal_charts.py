"""The signals of a run on its page: curves, and each number at the start and at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from germline.record.atomic_files import Row
from germline.report.advice import NEARLY_ALL, WINDOW, mean, percent, signal, with_update
from germline.report.curves import generations
from germline.report.svg_charts import Chart, Curve, Mark, Number, thin_out
from germline.report.text_format import number
from germline.signal_metrics import signal_to_noise

Write = Callable[[float | None], str]


@dataclass(frozen=True)
class SignalReading:
    """One of the signals: its mean over the first and over the last generations, in words."""

    name: str
    start: str
    end: str
    meaning: str


def signal_charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw what there is to draw: shares, agreement of halves, served weights that move."""
    recorded = [row for row in rows if row.get("signals")]
    drawn = (_shares(recorded), _agreement(recorded), _steps(recorded)) if recorded else ()
    return [chart for chart in drawn if chart]


def walk_chart(distances: Sequence[float | None], edge: float | None) -> list[Chart]:
    """Draw the walk of the updates against the edge, where that is known; no chart of no walk.

    Args:
        distances: after each generation, in the unit of sigma.
        edge: sigma at which random members break.
    """
    known = [one for one in distances if one]
    if not known:
        return []
    places = [float(place) for place in range(len(distances))]
    marks: list[Mark] = [Curve("walk of the updates", "mean", places, list(distances))]
    against = "`germline probe` measures where random members break (record.edge in probe.yaml)"
    said = ""
    if edge is not None:
        ends = [places[0], places[-1]]
        marks.append(Curve("edge: random members break", "run-1", ends, [edge, edge]))
        against = f"Random members break at the edge, {number(edge)}; so does a model carried there"
        said = f" The edge, where random members break, is at {number(edge)}."
    return [
        Chart(
            name="signal-walk",
            caption="How far a random walk of the updates has carried the weights, root mean "
            f"square per weight, in the unit of sigma. {against}. Where there is a signal, only a "
            "part of each step is noise.",
            alt="Line chart of the walk of the updates, which grows to "
            f"{number(known[-1])} in {len(distances)} generations.{said}",
            x_label="generation",
            y_label="walk",
            marks=marks,
        )
    ]


def signal_readings(rows: Sequence[Row]) -> list[SignalReading]:
    """Say what each signal was at the start and at the end; what no generation has is left out."""
    recorded = [row for row in rows if row.get("signals")]
    count = min(WINDOW, -(-len(recorded) // 2))
    found = []
    for name, (words, write, meaning) in MEANINGS.items():
        ends = [_mean(some, name) for some in (recorded[:count], recorded[-count:])]
        if ends != [None, None]:
            found.append(SignalReading(words, write(ends[0]), write(ends[1]), meaning))
    return found


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """Average a signal; the ratio follows from the mean agreement, which is steadier."""
    if name == "signal_to_noise":
        return signal_to_noise(mean(rows, "agreement"))
    if name == "walk":  # It grows: what counts is how far it has come.
        return signal(rows[-1], name) if rows else None
    # Where nothing was learned no step was taken: it would only water down those that were.
    return mean(with_update(rows) if name.startswith("step.") else rows, name)


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share)


MEANINGS: dict[str, tuple[str, Write, str]] = {
    "informative_examples": (
        "examples that tell members apart",
        _percent,
        "On the others all members earn the same, so they are played for nothing. Few of them: "
        "sigma is too small, or the examples are solved or hopeless.",
    ),
    "informative_pairs": (
        "pairs that differ",
        _percent,
        "Antithetic pairs whose two halves differ in fitness; only they move the weights.",
    ),
    "tied": (
        "members that tie",
        _percent,
        "As fit as another member. Many: the reward is coarse, or the batch is small.",
    ),
    "empty": (
        "empty completions",
        _percent,
        "Nothing but special tokens was written. Many: members are broken (sigma is too large), "
        "or silence is rewarded.",
    ),
    "agreement": (
        "agreement of halves",
        number,
        "Cosine of the updates that the two halves of each batch would give. Near 0, an update "
        "follows the luck of its examples: play more of them. Near 1, fewer would do.",
    ),
    "signal_to_noise": (
        "signal to noise",
        number,
        "What that agreement says about the update of the whole batch, as a ratio of powers: "
        "above 1 it is signal for the most part.",
    ),
    "signal_share": (
        "signal in the differences",
        number,
        "Share of what separates the members that the choice of examples does not explain; below 0 "
        "where chance made less than usual. learning_rate=auto makes steps as long as this is.",
    ),
    "directions": (
        "effective directions",
        number,
        "How many of the population's directions carry the update: far fewer than there are "
        "means that some members decide alone (clip or rank the utilities).",
    ),
    "walk": (
        "walk of the updates",
        number,
        "How far the updates would have carried each weight by then, root mean square in the unit "
        "of sigma, if they were a random walk. At the sigma at which random members break, the "
        "model breaks as well.",
    ),
    "step.rank": (
        "effective rank of a step",
        number,
        "Of the update of a matrix: that of its directions, bounded by the matrix.",
    ),
    "step.rms": (
        "step per weight",
        number,
        "Root mean square over all searched numbers.",
    ),
    "step.in_roundings": (
        "step in roundings",
        number,
        "The same, in spacings of the dtype that is served, of the middle tensor. Below 1 an "
        "update is seen in part only, until updates add up in the fp32 masters: nothing is lost.",
    ),
    "step.least_in_roundings": (
        "in the slowest tensor",
        number,
        "The same, of the tensor that moves least for its size.",
    ),
    "step.moved": (
        "served weights that move",
        _percent,
        "Share that an update changes after rounding.",
    ),
}
"""Signal -> its words, how its values are written, what it means and what to do."""


def _shares(rows: Sequence[Row]) -> Chart | None:
    """Draw the shares that carry information; a member that is alone has next to none."""
    marks: list[Mark] = []
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
        caption="What carries information in each generation, as shares: examples on which "
        "members differ, antithetic pairs whose halves differ, completions without any text.",
        alt="Line chart of the shares of a generation that carry information: examples that tell "
        f"members apart go from {_ends(rows, EXAMPLES, _percent)}, completions without text from "
        f"{_ends(rows, 'empty', _percent)}.",
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
        f"give by themselves. One generation says little; the heavy line is the mean of {WINDOW}.",
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
    """Draw how many served weights move, where that is not simply all of them."""
    moved = [signal(row, "step.moved") for row in with_update(rows)]
    if all(share is None or share > NEARLY_ALL for share in moved):
        return None
    return Chart(
        name="signal-steps",
        caption="Share of the served weights that an update changes, after rounding to the dtype "
        "they are served in. What is too small to be seen is kept by the fp32 masters.",
        alt="Line chart of the share of served weights that each update changes, from "
        f"{_ends(rows, 'step.moved', _percent)}.",
        x_label="generation",
        y_label="share",
        marks=[_curve("served weights that move", "mean", rows, "step.moved")],
    )


EXAMPLES, PAIRS = "informative_examples", "informative_pairs"


def _curve(label: str, tone: str, rows: Sequence[Row], name: str) -> Curve:
    values: list[Number] = [signal(row, name) for row in rows]
    return Curve(label, tone, generations(rows), thin_out(values))


def _ends(rows: Sequence[Row], name: str, write: Write) -> str:
    found = [value for row in rows if (value := signal(row, name)) is not None]
    return f"{write(found[0])} to {write(found[-1])}" if found else "nothing"
