"""The curves of a report: fitness, held-out scores, sigma and step, of one run or of several."""

from collections.abc import Sequence
from itertools import pairwise

from germline.config import AutoLearningRate, AutoSigma, Config, Nes
from germline.evaluation.held_out import Z_95, confidence_interval, score_of_values
from germline.record.atomic_files import Row
from germline.record.metrics_rows import calibrated_kl, scores_by_scorer
from germline.report.run_facts import LONGEST_NAME, RunFacts, bounded_text
from germline.report.svg_charts import Band, Chart, Curve, Mark, Number, Points, thin_out
from germline.report.text_format import counted_by, number, scored_as
from germline.types import HeldOutScore

MOST_BANDS = 3
"""Largest number of runs whose bands are drawn in one chart."""

MOST_GENERATIONS = 6
"""Largest number of generations that a caption lists."""

TONES = 8
"""Number of tones in the style sheet; further runs reuse them with another dash."""


def fitness(run: RunFacts) -> Chart | None:
    """Draw fitness of the members by generation; None before the first generation."""
    if not run.rows:
        return None
    means = [row["fitness"]["mean"] for row in run.rows]
    best = max((row["fitness"]["max"] for row in run.rows if _known(row)), default=None)
    one = run.config.method.graded
    return Chart(
        name="fitness",
        caption=f"Fitness of the {one}s on the training examples of each generation: "
        f"mean, best {one}, and the band from the 20th to the 80th percentile."
        f"{_grouped(run)}{_weighed(run)}",
        alt=f"Line chart of training fitness over {len(means)} generations. The mean goes from "
        f"{number(means[0])} to {number(means[-1])}; the best {one} of any generation reached "
        f"{number(best)}.",
        x_label="generation",
        y_label="fitness",
        marks=[
            _band(f"20–80 % of {one}s", "mean", run.rows),
            _curve(f"best {one}", "best", run.rows, "max"),
            _curve("mean", "mean", run.rows, "mean"),
        ],
    )


def held_out(run: RunFacts) -> Chart | None:
    """Draw the held-out scores of the center; None when there are none."""
    if not run.scores:
        return None
    first, last, best = run.scores[0], run.scores[-1], run.best
    metric, unit = metric_words(run.metric), counted_by(run.config)
    place = run.scores.index(best) if best else 0
    marks: list[Mark] = [_points(f"held-out {metric}", "held", run.scores, name=True, also=place)]
    if best and len(run.scores) > 1:
        at, value = [float(best.generation)], [best.mean]
        marks.append(Points(f"best, after {best.generation}", "best", at, value, value, value))
    return Chart(
        name="held-out",
        caption=f"Held-out {metric} of the {scored_as(run.config)} on {last.n} examples "
        "it is not trained on, "
        f"with 95 % intervals over examples ({_intervals(last)})"
        f"{'; ' + run.better if run.better else ''}.",
        alt=f"Point chart of held-out {metric} after each of {len(run.scores)} evaluations: "
        f"{_measured(first)} after {first.generation} {unit}"
        + (f", {_measured(last)} after {last.generation} {unit}" if last != first else "")
        + (f"; best: {number(best.mean)} after {best.generation}." if best else "."),
        x_label=unit,
        y_label=metric,
        marks=marks,
    )


def held_out_scorers(run: RunFacts) -> list[Chart]:
    """Draw the reward of the held-out completions, and their scores by `held_out.scorers`."""
    by_scorer = scores_by_scorer(run.scores)
    rewarded = [one for one in run.scores if one.rewards]
    charts = []
    if any(one.rewards != one.values for one in rewarded):
        rewards = [
            score_of_values(one.generation, "reward", one.rewards, higher_is_better=True)
            for one in rewarded
        ]
        charts.append(
            _scorer_chart(run, "held-out-reward", "Reward of the held-out completions", rewards)
        )
    for name, scores in by_scorer.items():
        title = (
            f"Held-out scorer {metric_words(name)}: its scores of the same completions, which are "
            "never part of the reward"
        )
        charts.append(_scorer_chart(run, f"held-out-scorer-{name}", title, scores))
    return charts


def _scorer_chart(run: RunFacts, name: str, title: str, scores: Sequence[HeldOutScore]) -> Chart:
    first, last, unit = scores[0], scores[-1], counted_by(run.config)
    words = metric_words(last.metric)
    better = "higher is better" if last.higher_is_better else "lower is better"
    end = f", {_measured(last)} after {last.generation} {unit}" if len(scores) > 1 else ""
    return Chart(
        name=name,
        caption=f"{title}, with 95 % intervals over examples ({_intervals(last)}); {better}.",
        alt=f"Point chart of held-out {words} after each of {len(scores)} evaluations: "
        f"{_measured(first)} after {first.generation} {unit}{end}.",
        x_label=unit,
        y_label=words,
        marks=[_points(f"held-out {words}", "held", scores, name=True)],
    )


def sigma(run: RunFacts) -> Chart | None:
    """Draw sigma by generation; None if it is constant, or differs only between members."""
    values = [row["sigma"] for row in run.rows]
    if len(set(values)) < 2 or not run.config.method.trains_center:
        return None
    marks: list[Mark] = [Curve("sigma", "mean", generations(run.rows), thin_out(values))]
    said = "Sigma of the members"
    if all("sigmas" in row for row in run.rows):
        low, high = (thin_out([row["sigmas"][end] for row in run.rows]) for end in ("min", "max"))
        marks.insert(0, Band("smallest to largest", "mean", generations(run.rows), low, high))
        said = "Sigma of the tensors: their geometric mean, and the band from smallest to largest"
    return Chart(
        name="sigma",
        caption=f"{said}, in the unit of strategy.sigma_unit.{_sigma_changes(run)}{_grouped(run)}",
        alt=f"Line chart of sigma over {len(values)} generations, from {number(values[0])} to "
        f"{number(values[-1])}.",
        x_label="generation",
        y_label="sigma",
        marks=marks,
    )


def step(run: RunFacts) -> Chart | None:
    """Draw the length of every step; None if the learning rate is not measured."""
    section = run.config.search
    rows = [row for row in run.rows if "step_in_sigmas" in row]
    if not (
        rows and isinstance(section, Nes) and isinstance(section.learning_rate, AutoLearningRate)
    ):
        return None
    values, rates = ([row[name] for row in rows] for name in ("step_in_sigmas", "learning_rate"))
    return Chart(
        name="step",
        caption="Root mean square of the steps, in sigmas, set from the measured signal "
        f"(learning rates from {number(min(rates))} to {number(max(rates))})."
        f"{calibrated(run)}{_grouped(run)}",
        alt=f"Line chart of the step over {len(values)} generations, from {number(values[0])} to "
        f"{number(values[-1])} sigmas.",
        x_label="generation",
        y_label="step in sigmas",
        marks=[Curve("step", "mean", generations(rows), thin_out(values))],
    )


def calibrated(run: RunFacts) -> str:
    """Return the result of the calibration of sigma, if any; begins with a space."""
    rows = [row for row in run.rows if row.get("calibration")]
    if not rows:
        return ""
    first, trials = rows[0], rows[0]["calibration"]
    many = "s" if len(trials) > 1 else ""
    return (
        f" The members of generation {first['generation']} had sigma {number(first['sigma'])}, "
        f"calibrated in {len(trials)} trial{many} to a KL divergence of about "
        f"{number(calibrated_kl(first, first['sigma']))} nats per token{_target(run.config)}."
    )


def _target(config: Config) -> str:
    """Name the divergence to which sigma is calibrated."""
    sigma = getattr(config.strategy, "sigma", None)
    return f" (target {number(sigma.target_kl)})" if isinstance(sigma, AutoSigma) else ""


def _sigma_changes(run: RunFacts) -> str:
    """Say in which generations a calibrated sigma changed, and why; begins with a space."""
    if not isinstance(getattr(run.config.strategy, "sigma", None), AutoSigma):
        return ""
    reasons: dict[str, list[str]] = {}
    for before, row in pairwise(run.rows):
        if row["sigma"] == before["sigma"]:
            continue
        if row.get("calibration"):
            why = "was calibrated again before"
        elif row["sigma"] > before["sigma"]:
            why = "grew by half, because few directions had a signal in the one before, in"
        else:
            why = "shrank again, because more directions had a signal in the one before, in"
        reasons.setdefault(why, []).append(str(row["generation"]))
    parts = [f"{why} generation {_listed(places)}" for why, places in reasons.items()]
    return f" Sigma {'; it '.join(parts)}." if parts else ""


def _listed(places: Sequence[str]) -> str:
    more = len(places) - MOST_GENERATIONS
    return ", ".join(places[:MOST_GENERATIONS]) + (f" and {more} more" if more > 0 else "")


def compare_runs(runs: Sequence[RunFacts], tones: Sequence[str]) -> list[Chart]:
    """Draw runs in the same charts: a pair of charts for the runs that share task and metric.

    Args:
        runs: to draw.
        tones: the CSS classes of the color of each.
    """
    charts: list[Chart] = []
    for task, metric in dict.fromkeys((_task(run), run.metric) for run in runs):
        same = [
            (tone, run)
            for tone, run in zip(tones, runs, strict=True)
            if (_task(run), run.metric) == (task, metric)
        ]
        place = len(charts)
        drawn = (_fitness_of(task, same, place), _scores_of(task, same, place))
        charts += [chart for chart in drawn if chart]
    return charts


def run_style(place: int) -> str:
    """Return the CSS classes of the run at this index of a comparison."""
    return f"run-{place % TONES}" + (" again" if place >= TONES else "")


def metric_words(name: str) -> str:
    """Write the name of a metric as words."""
    return name.replace("_", " ")


def _task(run: RunFacts) -> str:
    return bounded_text(run.config.task.title, LONGEST_NAME)


def _fitness_of(task: str, runs: Sequence[tuple[str, RunFacts]], place: int) -> Chart | None:
    begun = [(tone, run) for tone, run in runs if run.rows]
    if not begun:
        return None
    banded = len(begun) <= MOST_BANDS
    marks: list[Mark] = [_band("", tone, run.rows) for tone, run in begun if banded]
    marks += [_curve(run.name, tone, run.rows, "mean") for tone, run in begun]
    ends = "; ".join(
        f"{run.name} from {number(run.rows[0]['fitness']['mean'])} to "
        f"{number(run.rows[-1]['fitness']['mean'])}"
        for _, run in begun
    )
    band = ", with the band from the 20th to the 80th percentile" if banded else ""
    return Chart(
        name=f"fitness-{place}",
        caption=f"Task {task}: mean fitness on the training examples of each generation{band}.",
        alt=f"Line chart of mean training fitness on task {task}, a line per run: {ends}.",
        x_label="generation",
        y_label="fitness",
        marks=marks,
    )


def _scores_of(task: str, runs: Sequence[tuple[str, RunFacts]], place: int) -> Chart | None:
    scored = [(tone, run) for tone, run in runs if run.scores]
    if not scored:
        return None
    one = scored[0][1]
    metric = metric_words(one.metric)
    said = " or the ".join(dict.fromkeys(scored_as(run.config) for _, run in scored))
    ends = "; ".join(
        f"{run.name} from {_measured(run.scores[0])} to {_measured(run.scores[-1])}"
        for _, run in scored
    )
    return Chart(
        name=f"held-out-{place}",
        caption=f"Task {task}: held-out {metric} of the {said}, with 95 % intervals over "
        f"examples ({_intervals(one.scores[-1])}){'; ' + one.better if one.better else ''}.",
        alt=f"Point chart of held-out {metric} on task {task}, a line per run: {ends}.",
        x_label="updates",
        y_label=metric,
        marks=[
            _points(run.name, tone, run.scores, shift=5.0 * (order - (len(scored) - 1) / 2))
            for order, (tone, run) in enumerate(scored)
        ],
    )


def _curve(label: str, tone: str, rows: Sequence[Row], name: str) -> Curve:
    return Curve(label, tone, generations(rows), thin_out([row["fitness"][name] for row in rows]))


def _band(label: str, tone: str, rows: Sequence[Row]) -> Band:
    low, high = (thin_out([row["fitness"][name] for row in rows]) for name in ("p20", "p80"))
    return Band(label, tone, generations(rows), low, high)


def _points(
    label: str,
    tone: str,
    scores: Sequence[HeldOutScore],
    *,
    name: bool = False,
    also: int = 0,
    shift: float = 0.0,
) -> Points:
    """Return scores as points, optionally with the values of the first, the last and one more."""
    return Points(
        label,
        tone,
        x=[float(score.generation) for score in scores],
        y=[score.mean for score in scores],
        low=[low for low, _ in map(confidence_interval, scores)],
        high=[high for _, high in map(confidence_interval, scores)],
        named=sorted({0, also, len(scores) - 1}) if name else (),
        shift=shift,
    )


def generations(rows: Sequence[Row]) -> list[float]:
    """Return the generations of the points of a curve over these rows, thinned out like values."""
    places: list[Number] = [float(row["generation"]) for row in rows]
    return [place for place in thin_out(places) if place is not None]


def _grouped(run: RunFacts) -> str:
    group = -(-len(run.rows) // max(1, len(generations(run.rows))))
    return f" Each point is the mean of {group} generations." if group > 1 else ""


def _weighed(run: RunFacts) -> str:
    """Return that fitness falls where lambda grows, if it grew; begins with a space."""
    weights = [row["lambda"] for row in run.rows if "lambda" in row]
    if not weights or weights[-1] <= weights[0]:
        return ""
    return (
        f" Lambda, the weight of the cost, grew from {number(weights[0])} to {number(weights[-1])}"
        ", and fitness falls where lambda grows: compare generations by the parts of the reward "
        "and by held-out scores, which keep the first lambda."
    )


def _known(row: Row) -> bool:
    return row["fitness"]["max"] is not None


def _measured(score: HeldOutScore) -> str:
    low, high = map(number, confidence_interval(score))
    return f"{number(score.mean)} [{low}, {high}]"


def _intervals(score: HeldOutScore) -> str:
    return "Wilson's" if score.proportion else f"± {Z_95} standard errors"
