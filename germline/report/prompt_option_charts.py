"""Prompt options: the probability of every option, as curves and in words."""

from collections.abc import Mapping, Sequence

from germline.record.atomic_files import Row
from germline.report.curves import generations, run_style
from germline.report.svg_charts import Chart, Curve, thin_out
from germline.report.text_format import escape_control_characters

LONGEST_OPTION = 40
"""Characters of a template that are shown."""

Probabilities = Mapping[str, Mapping[str, float]]
"""Setting -> option -> probability."""


def option_charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw the probabilities of every setting that was searched, a line per option."""
    searched = [row for row in rows if row.get("option_probabilities")]
    return [
        _chart(name, searched)
        for name in (searched[-1]["option_probabilities"] if searched else ())
    ]


def most_likely_options(probabilities: Probabilities) -> list[str]:
    """Name the most likely option of every setting, with its probability."""
    found = []
    for name, options in probabilities.items():
        option = max(options, key=lambda one: options[one])
        found.append(f"{escape_control_characters(name)} {_short(option)} ({options[option]:.0%})")
    return found


def center_options(rows: Sequence[Row]) -> list[str]:
    """Return the options of the center after these generations; empty if none are searched."""
    return most_likely_options(rows[-1].get("option_probabilities", {})) if rows else []


def _chart(name: str, rows: Sequence[Row]) -> Chart:
    options = list(rows[-1]["option_probabilities"][name])
    ends = "; ".join(
        f"{_short(option)} {rows[-1]['option_probabilities'][name][option]:.0%}"
        for option in options
    )
    return Chart(
        name=f"option-{name}",
        caption=f"Probability with which a member uses each {name}, after every generation. "
        "The center uses the most likely one.",
        alt=f"Line chart of the probability of each {name} over {len(rows)} generations. At the "
        f"end: {ends}.",
        x_label="generation",
        y_label="probability",
        marks=[
            Curve(
                _short(option),
                run_style(place),
                generations(rows),
                thin_out([row["option_probabilities"][name][option] for row in rows]),
            )
            for place, option in enumerate(options)
        ],
    )


def _short(option: str) -> str:
    shown = escape_control_characters(" ".join(option.split()))
    return shown if len(shown) <= LONGEST_OPTION else shown[: LONGEST_OPTION - 1] + "…"
