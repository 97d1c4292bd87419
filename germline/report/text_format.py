"""Format numbers, durations, sizes, scores, tables, run titles and model text."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from germline.config import Config
from germline.errors import count_of
from germline.evaluation import confidence_interval
from germline.evaluation.behavior import DETECTORS, Verdict
from germline.evaluation.score_difference import PairedDifference, paired_difference
from germline.evaluation.statistics import Interval, SeedDifference, SeedStatistics
from germline.record.early_stopping import best_score
from germline.record.metrics_rows import scores_by_retained, scores_by_scorer
from germline.types import HeldOutScore

JOINERS = "\u200c\u200d"
"""Invisible characters that are kept: Persian words and family emoji need them."""

ALL_EQUAL = "(all values equal)"
"""Shown instead of an interval without width: up to 3 / n of all examples may differ from n equal
ones (95 %; the rule of three, Hanley and Lippman-Hand 1983, JAMA 249)."""

MEANS_OVER_SEEDS = "means over run seeds, from five seeds on with 95 % intervals (Student's t)"

ROUNDED_UP = 999.5
"""From here on three digits round to 1,000, which `.3g` writes as 1e+03."""

LONGEST_INTEGER = 1e15
"""From here on numbers are written as powers of ten, such as the perplexity of a broken model."""

DAY_S = 86_400

LONGEST_TEXT, LONGEST_OPTION = 1200, 40
"""Characters shown of a prompt or a completion, and of a prompt option."""

TEX = str.maketrans({"%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$"})

LONGEST_COMMON = 60
"""Characters that prompts may have in common at the start before that start is omitted."""


def number(value: float | int | None) -> str:
    """Format a number with about three digits; a dash if there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    value += 0  # -0.0 is 0
    return f"{value:,.0f}" if ROUNDED_UP <= abs(value) < LONGEST_INTEGER else f"{value:.3g}"


def signed(value: float | int | None) -> str:
    """Format a difference with its sign."""
    text = number(value)
    return f"+{text}" if text[0].isdigit() else text


def percent(share: float | int) -> str:
    """Format a share in percent, small ones with two significant digits."""
    value = 100 * share
    if 99.5 <= value < 100:
        return "> 99 %"  # and not all of them
    return f"{value:.0f} %" if value >= 9.5 or value == 0 else f"{value:.2g} %"


def duration(seconds: float | int) -> str:
    """Format seconds as m:ss min or h:mm:ss h; from two days on, as days."""
    if seconds >= 2 * DAY_S:
        return f"{number(seconds / DAY_S)} days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def seconds(value: float | int) -> str:
    """Format a time with a suitable unit."""
    if value >= 100:
        return duration(value)
    return f"{value:.3g} s" if value >= ROUNDED_UP / 1000 else f"{1000 * value:.3g} ms"


def size(count: float | int) -> str:
    """Format a number of bytes in decimal units."""
    return decimal(round(count))


def with_interval(mean: float, interval: Interval, write: Callable[[float], str] = number) -> str:
    """Format a mean with its 95 % interval, where that is known."""
    low, high = interval
    if math.isnan(low):
        return write(mean)
    return f"{write(mean)} {ALL_EQUAL if low == high else f'[{write(low)}, {write(high)}]'}"


def score(value: HeldOutScore, *, bootstrap: bool = False) -> str:
    """Format a held-out score with its 95 % interval over examples; see `confidence_interval`."""
    if not value.n:
        return "no score"
    return with_interval(value.mean, confidence_interval(value, bootstrap=bootstrap))


def mean_rewards(*scores: HeldOutScore) -> str:
    """Format the mean rewards of scores, first to last; empty where the metric is the reward."""
    is_known = all(math.isfinite(one.reward) for one in scores)
    if not is_known or all(one.reward == one.mean for one in scores):
        return ""
    return f"mean reward {' -> '.join(number(one.reward) for one in scores)}"


def difference(value: PairedDifference) -> str:
    """Format a paired difference with its 95 % interval, and on how many examples it is what."""
    return f"{with_interval(value.mean, value.interval, signed)}, {directions(value)}"


def directions(value: PairedDifference) -> str:
    """Say on how many examples the first score of a paired difference is higher and lower.

    Of right and wrong answers, with the p value of McNemar's test.
    """
    if not value.proportion:
        return f"{value.higher} higher, {value.lower} lower of {value.n}"
    p_value = "" if value.n == 1 else f", p {value.sign_test:.2g}"
    return f"{value.higher} progressions, {value.lower} regressions of {value.n}{p_value}"


def over_seeds(value: SeedStatistics) -> str:
    """Format a mean over run seeds, with its 95 % interval where there are enough seeds."""
    return with_interval(value.mean, (value.low, value.high))


def seed_difference_text(value: SeedDifference) -> str:
    """Format a difference over run seeds, with its 95 % interval and the numbers of seeds."""
    seeds = str(value.seeds[0]) if value.paired else "{} and {}".format(*value.seeds)
    if value.interval is None:
        return f"{signed(value.mean)} in all of {seeds} seeds"
    low, high = map(signed, value.interval)
    pairing = "paired by seed" if value.paired else "not paired, as the seeds differ"
    about = f"95 % interval {low} to {high}, {seeds} seeds, {pairing}"
    return f"{signed(value.mean)} ({about})"


def scorer_line(*scores: HeldOutScore) -> str:
    """Format scores of one of `held_out.scorers`, first to last, with how many texts have none."""
    values = " -> ".join(
        score(one) + (f" (n {one.n} of {len(one.values)})" if one.n < len(one.values) else "")
        for one in scores
    )
    better = "" if scores[-1].higher_is_better else ", lower is better"
    return f"held-out scorer {scores[-1].metric}: {values}{better}"


def score_lines(scores: Sequence[HeldOutScore], config: Config, done: int = 0) -> list[str]:
    """Describe the first, the last and the best held-out score, and those by scorers, in lines.

    Args:
        scores: held out, in order.
        config: of the run.
        done: updates of the run, which are said where there are some since the last score.
    """
    if not any(one.n for one in scores):
        return ["held-out: no example could be scored"] if scores else []
    last, best, counted = scores[-1], best_between(scores), counted_by(config)
    ends = (scores[0], last) if last.generation != scores[0].generation else (last,)
    values = " -> ".join(map(score, ends))
    line = f"held-out {last.metric}: {values} (mean and 95 % interval, n {last.n})"
    if best is not None:
        line += f", best: {score(best)} after {count_of(best.generation, counted)}"
    if rewards := mean_rewards(*ends):
        line += f", {rewards}"
    if len(ends) > 1 and (gain := paired_difference(last, ends[0])):
        line += f"; since the start {directions(gain)}"
    if last.generation < done:
        line += f"; scored last after {last.generation} of {count_of(done, counted)}"
    by_scorer = scores_by_scorer(scores).values()
    lines = [line, *(scorer_line(*dict.fromkeys((one[0], one[-1]))) for one in by_scorer)]
    if kept := scores_by_retained(scores):
        lines.append("retained: " + ", ".join(retained_change(*one) for one in kept.items()))
    return lines


def retained_change(name: str, scores: Sequence[HeldOutScore]) -> str:
    """Format the first, the last and the best score of one of `retained`; costs with their unit."""
    ends = dict.fromkeys(number(one.mean) for one in (scores[0], scores[-1]))
    unit = "" if scores[-1].higher_is_better else f" {scores[-1].metric.replace('_', ' ')}"
    best = best_between(scores)
    between = f" (best {number(best.mean)})" if best else ""
    return f"{escape_control_characters(name)} {' -> '.join(ends)}{unit}{between}"


def best_between(scores: Sequence[HeldOutScore]) -> HeldOutScore | None:
    """Return the best of at least one score; None where the first or the last is as good."""
    best = best_score(scores)
    return None if best is None or best.mean in (scores[0].mean, scores[-1].mean) else best


def behavior_line(behavior: Mapping[str, float]) -> str:
    """Format the share of broken answers, and the detectors that flag any."""
    found = [
        f"{name.replace('_', ' ')} {percent(behavior[name])}"
        for name in DETECTORS
        if behavior.get(name)
    ]
    return f"broken answers {percent(behavior['broken'])}; {', '.join(found) or 'none flagged'}"


def behavior_change(found: Verdict) -> str:
    """Format what a verdict is based on: shares that rose, and the length; empty if none did."""
    rises = [
        f"{name.replace('_', ' ')} {percent(before)} -> {percent(now)}"
        for name, (before, now) in found.rises.items()
    ]
    if found.is_other_length:
        rises.append(f"median length x {number(found.length_drift)}")
    return ", ".join(rises)


def escape_control_characters(text: str) -> str:
    """Replace characters that a terminal or a browser may interpret; keep breaks, tabs, spaces.

    Control characters, marks that change the direction of writing, and surrogates are replaced.
    """
    return "".join(
        one if one.isprintable() or one in "\n\t" or one in JOINERS or one == "\u3000" else "�"
        for one in text.replace("\u00a0", " ").replace("\u202f", " ")
    )


def center_options(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the most likely prompt option of every setting, with its probability, if any exist."""
    return [
        f"{escape_control_characters(name)} "
        f"{one_line_excerpt(' '.join(option.split()), LONGEST_OPTION)} ({some[option]:.0%})"
        for name, some in (rows[-1].get("option_probabilities", {}) if rows else {}).items()
        for option in [max(some, key=some.__getitem__)]
    ]


def bounded_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """Shorten a text in its middle, count what is left out, and replace control characters."""
    cut, half = len(text) - longest, longest // 2
    if cut <= 0:
        return escape_control_characters(text)
    first, last = map(escape_control_characters, (text[:half], text[-half:]))
    return f"{first} … ({count_of(cut, 'more characters')}) … {last}"


def one_line_excerpt(text: str, width: int) -> str:
    """Shorten model text to one line: line breaks become ⏎, control characters are replaced.

    The text is cut after a whole word where possible.
    """
    line = escape_control_characters("⏎".join(text.splitlines()).replace("\t", " "))
    if len(line) <= width:
        return line
    cut = line[: width - 1]
    end = cut.rfind(" ")
    return (cut[:end] if end > width // 2 and line[width - 1] != " " else cut).rstrip() + "…"


def without_common_start(prompts: Sequence[str]) -> list[str]:
    """Omit the instructions with which all prompts begin; short ones are kept.

    An excerpt of countdown's prompts would otherwise show only the instructions.
    """
    common = len(commonprefix(list(prompts)))  # noqa: RUF071 - texts and no paths
    if common <= LONGEST_COMMON or len(set(prompts)) < 2:
        return list(prompts)
    # Some words before the first difference are kept, for orientation.
    start = prompts[0].rfind(" ", 0, common - LONGEST_COMMON // 3) + 1
    return [f"… {prompt[start:]}" for prompt in prompts]


def run_title(config: Config) -> tuple[str, str]:
    """Return a run's title in two lines: task, model, space and method; population and seed."""
    rank = f" r = {config.space.rank}" if hasattr(config.space, "rank") else ""
    method, group = config.method.kind, getattr(config.method, "group_size", None)
    how = config.strategy.kind if method == "es" else method
    how += f" G = {group}" if group else ""
    population = f"N = {config.strategy.population}, " if config.method.perturbs else ""
    return (
        f"{config.task.title} · {Path(config.model).name} · {config.space.kind}{rank} · {how}",
        f"{population}run seed {config.seed}",
    )


def scored_as(config: Config) -> str:
    """Return whether the center or a vote of members is scored on held-out examples."""
    return "center" if config.method.trains_center else "vote"


def counted_by(config: Config) -> str:
    """Return the unit in which held-out scores are counted: generations if nothing is updated."""
    return "updates" if config.method.trains_center else "generations"


@dataclass(frozen=True)
class Table:
    """A table of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return it in Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(one.replace('|', '/') for one in row)} |" for row in lines)

    def latex(self) -> str:
        """Return it as a tabular environment of LaTeX."""
        lines = [" & ".join(row).translate(TEX) + r" \\" for row in (self.columns, *self.rows)]
        begin = rf"\begin{{tabular}}{{{'l' * len(self.columns)}}}"
        return "\n".join([begin, *lines, r"\end{tabular}"])
