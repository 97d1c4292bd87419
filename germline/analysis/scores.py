"""Scores of weights: between models (`modes`), from a center (`directions`), of several tries.

**Modes.** The points are

    one model      start + t (model - start), t from 0 to 1.5
    two models     (1 - t) A + t B, t from 0 to 1
    three models   w1 A + w2 B + w3 C in thirds, w1 + w2 + w3 = 1

The drop of a line below the straight line, with the score v_e(t) of example e, is

    (1)  D_e(t) = (1 - t) v_e(0) + t v_e(1) - v_e(t)

and the barrier its largest mean (Frankle et al. 2020, arXiv 1912.05671, with scores for errors). As
the largest of noisy values is above 0 without any barrier, one half of the examples chooses t and
the other half measures (1), and the other way around. At t = 1/2, D > 0 says that the line is flat
first and then sharp, D < 0 that the first half of the way brings most of the change.

**Directions.** At a distance t from a center (the start, the run), in norms of the learned delta,
with s(0) the score of the center,

    (2)  slope = (s(t) - s(-t)) / 2             the odd part: what the direction knows of the task
    (3)  cost  = (s(t) + s(-t)) / 2 - s(0)      the even part: what any step of this length costs
    (4)  gain  = slope + cost = s(t) - s(0)     positive where the slope pays for the cost

along the `learned` delta of the first source; `held out`: that of the second source, such as a run
with another seed or other examples, whose slope is of the task and not of the first run's examples
or noise; and `random`: Gaussian, with the learned delta's norm in every tensor. Intervals are
paired over examples.

**Robustness.** Gaussian noise on all weights, on the head, and on groups of layers is the same for
all models. Its scale is a multiple of the RMS of each tensor at the start; the table has the RMS
over all numbers of the noise as well. Intervals are over trials (Student's t, from five on).

**Coverage.** Which examples k tries solve:

    start, sampled     n answers of the start at a temperature
    start, noise s     greedy answers of n models: the start with Gaussian noise of s RMS per tensor
    MODEL, sampled     n answers of a trained model at the temperature

pass@k is the unbiased estimate of `evaluation.statistics` (best@k of a metric that is no share). An
example is solved if one of the n answers is right; of a metric that is no share, if one is better
than the greedy answer of the start. Progressions and regressions compare a model's greedy answers
with those of the start (McNemar's test).
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float64
from pydantic import Field

from germline.analysis.scorer import Point, ScoreSettings, Values, WeightsScorer, open_scorer
from germline.analysis.weights import Request, Result, Weights, cell
from germline.config.base import Listed
from germline.evaluation import confidence_interval
from germline.evaluation.held_out import mean_of_known, reductions, score_of_values
from germline.evaluation.score_difference import PairedDifference
from germline.evaluation.statistics import Estimate, seed_statistics
from germline.noise import epoch_permutation
from germline.record.atomic_files import Row
from germline.report.charts import Chart, mean_lines
from germline.types import GermlineError

Positive = Annotated[float, Field(gt=0)]
Numbers = Annotated[tuple[Positive, ...], Listed]

LINE = tuple(step / 10 for step in range(11))

SHARES: Mapping[int, Sequence[tuple[float, ...]]] = {
    1: [(t,) for t in (*LINE, 1.25, 1.5)],
    2: [(1 - t, t) for t in LINE],
    3: [((3 - b - c) / 3, b / 3, c / 3) for c in range(4) for b in range(4 - c)],
}
"""The shares of one, two or three models in each point."""

RANDOM = 3
"""Random directions, whose scores are averaged."""

ALL, HEAD, SAMPLED = "all weights", "head", "start, sampled"


class DirectionSettings(ScoreSettings):
    """Settings of `germline analyze directions`."""

    distances: Numbers = (0.125, 0.25, 0.5)
    """In norms of the learned delta."""


class RobustnessSettings(ScoreSettings):
    """Settings of `germline analyze robustness`."""

    scales: Numbers = (0.01, 0.03, 0.1, 0.3, 1.0)
    """Standard deviations of the noise, in RMS of each tensor at the start."""
    trials: Annotated[int, Field(ge=1)] = 5
    """Draws of noise for each scale."""
    groups: Literal["all", "each"] = "each"
    """`all`: noise on all weights only; `each`: also on the head, and on thirds of the layers."""


class CoverageSettings(ScoreSettings):
    """Settings of `germline analyze coverage`."""

    samples: Annotated[int, Field(ge=2)] = 16
    """Tries for each example."""
    temperature: Positive = 1.0
    """Of sampled answers."""
    scales: Numbers = (0.03, 0.1, 0.3)
    """Standard deviations of the noise, in RMS of each tensor."""


def modes(request: Request, settings: ScoreSettings) -> Result:
    """Score the points between one, two or three models."""
    models, labels = request.opened, request.labels
    is_line = len(models) < 3
    title = " to ".join(["start", *labels][-2:]) if is_line else ", ".join(labels)
    names = ("share",) if len(models) == 1 else ("first", "second", "third")[: len(models)]
    rows, scored = [], []
    with open_scorer(request, settings) as scorer:
        for shares in SHARES[len(models)]:
            parts = zip(shares, models, strict=True)
            point = Point(tuple(part for part in parts if part[0]))
            (values,), facts = scorer.measured(point)
            scored.append(values)
            about: Row = dict(zip(names, shares, strict=True))
            about["line"] = title if is_line else f"{shares[2]:.2g} {labels[2]}"
            rows.append({**about, "score": score_and_interval(values), **facts})
    x, x_label = names[:2][-1], f"share of {labels[:2][-1]}"
    titles = {"score": "score", "kl_per_token": "KL per token"}
    drawn = {name: mean_lines(rows, "line", x, y) for y, name in titles.items()}
    charts = [Chart(name, "", x_label, series) for name, series in drawn.items()]
    about, notes = {}, []
    if is_line:
        shape = line_shape(scorer.sign * np.array(scored[: len(LINE)]))
        about, notes = {"shape": shape}, [f"{title}: {shape_text(shape)}"]
    title = f"Scores {'from' if is_line else 'between'} {title}"
    return Result(title, rows, charts, about, notes, hidden=["line"])


def line_shape(values: Float64[np.ndarray, "points examples"]) -> dict[str, Any]:
    """Measure the shape of a line, at the points of `LINE`, whose values are better when higher.

    Returns the barrier, the point `at` which all examples have the largest drop, and the drop
    `half` way, with intervals and signs that chance does not explain.
    """
    values = values[:, np.isfinite(values).all(axis=0)]
    at = np.array(LINE)[:, None]
    drops = (1 - at) * values[0] + at * values[-1] - values
    order = epoch_permutation(0, "barrier", 0, drops.shape[1])
    halves = order[::2], order[1::2]
    parts = [
        drops[1 + int(drops[1:-1][:, other].mean(axis=1).argmax()), some]
        for some, other in (halves, halves[::-1])
    ]
    barrier, half = map(difference, (np.concatenate(parts), drops[len(LINE) // 2]))
    return {
        "barrier": barrier.estimate,
        "is_barrier": barrier.certain_sign > 0,
        "at": LINE[int(drops.mean(axis=1).argmax())],
        "half": half.estimate,
        "half_sign": half.certain_sign,
    }


def shape_text(shape: dict[str, Any]) -> str:
    """Say the shape of a line in one sentence."""
    bends = {1: "flat, then sharp", -1: "most of the change comes first", 0: "no bend is certain"}
    return (
        f"{'a barrier' if shape['is_barrier'] else 'no barrier'}, drop {cell(shape['barrier'])} "
        f"(largest at {shape['at']:g}); half way {cell(shape['half'])} below the straight line: "
        f"{bends[shape['half_sign']]}"
    )


def directions(request: Request, settings: DirectionSettings) -> Result:
    """Score along the learned, the held-out and random directions, from the start and the run."""
    opened, distances = request.opened, sorted(settings.distances)
    averaged: dict[object, list[float]] = {**{t: [t] for t in distances}, "mean": distances}
    rows: list[Row] = []
    charts = []
    with open_scorer(request, settings) as scorer:
        steps = steps_of(scorer, opened)
        for center, parts in {"start": (), "run": ((1.0, opened[0]),)}.items():
            curve, still = [], scorer.values_at(Point(parts))
            for name, points in steps.items():
                at = {0.0: still}
                for t in (*distances, *(-t for t in distances)):
                    scored = [scorer.values_at(one.after(parts, t)) for one in points]
                    at[t] = np.mean(scored, axis=0)
                curve += [{"name": name, "t": t, "score": mean_of_known(at[t])} for t in sorted(at)]
                for distance, some in averaged.items():
                    row = {"from": center, "direction": name, "distance": distance}
                    rows.append(row | _parts(at, some, scorer.sign))
            series = mean_lines(curve, "name", "t", "score")
            charts.append(Chart(f"score from the {center}", "", "distance", series))
    label = request.labels[0]
    notes = [f"{label} {_signal(rows)}"]
    return Result(f"Directions of {label}", rows, charts, notes=notes, hidden=["gain_sign"])


def steps_of(scorer: WeightsScorer, opened: Sequence[Weights]) -> dict[str, list[Point]]:
    """Return the points at distance 1 from the start along each direction."""
    sizes = [scorer.deviations(one) for one in opened]
    norms = [scorer.norm(one) for one in sizes]
    if 0.0 in norms:
        raise GermlineError(
            f"directions: {opened[norms.index(0.0)].label} has the weights of its start, so it has "
            "no delta: name a run with at least one update"
        )
    learned = zip(("learned", "held out"), opened, norms, strict=False)
    steps = {name: [Point(((norms[0] / norm, one),))] for name, one, norm in learned}
    return {**steps, "random": [Point((), sizes[0], trial) for trial in range(RANDOM)]}


def difference(values: Values) -> PairedDifference:
    """Summarize differences of examples that were computed from means of scores."""
    return PairedDifference.of(np.round(values, 12))  # 0.3 - 0.1 is not 0.2


def _parts(at: Mapping[float, Values], distances: Sequence[float], sign: float) -> Row:
    """Return equations (2) to (4) with intervals, and the scores at -t and t, of mean values."""
    plus, minus = (np.mean([at[side * t] for t in distances], axis=0) for side in (1, -1))
    even, gain = (plus + minus) / 2 - at[0.0], difference(sign * (plus - at[0.0]))
    return {
        "score_at_-t": mean_of_known(minus),
        "score_at_t": mean_of_known(plus),
        "slope": difference(sign * (plus - minus) / 2).estimate,
        "cost": difference(sign * even).estimate,
        "gain": gain.estimate,
        "gain_sign": gain.certain_sign,
    }


def _signal(rows: Sequence[Row]) -> str:
    """Say whether a further step along a direction of the task improves the run."""
    means = [row for row in rows if (row["from"], row["distance"]) == ("run", "mean")]
    learned = [row for row in means if row["direction"] != "random"]
    best = max(learned, key=lambda row: row["gain_sign"])
    return {
        1: f"still has signal: a further step in the {best['direction']} direction improves it",
        0: "may have signal left: no gain or loss is certain",
        -1: "has no signal left: a further step costs more than its slope brings",
    }[best["gain_sign"]]


def robustness(request: Request, settings: RobustnessSettings) -> Result:
    """Score models with noise on their weights."""
    rows: list[Row] = []
    with open_scorer(request, settings) as scorer:
        units, groups = scorer.deviations(), layer_groups(scorer)
        if settings.groups == "all":
            groups = {ALL: groups[ALL]}
        cases = product(request.opened, groups.items(), sorted(settings.scales))
        for weights, (group, names), scale in cases:
            center, noise = ((1.0, weights),), {name: scale * units[name] for name in names}
            clean = mean_of_known(scorer.values_at(Point(center)))
            trials = range(settings.trials)
            measured = [scorer.measured(Point(center, noise, trial)) for trial in trials]
            scores = [mean_of_known(values) for (values,), _ in measured]
            kl = [facts["kl_per_token"] for _, facts in measured]
            over = seed_statistics(scores)
            row: Row = {"model": weights.label, "noise_on": group, "scale": scale, "scores": scores}
            row["rms"] = scorer.norm(noise) / scorer.norm(dict.fromkeys(names, 1.0))
            row["score"] = over.mean, (over.low, over.high)
            row |= {"without_noise": clean, "share_kept": over.mean / clean if clean else None}
            row["kl_per_token"] = None if None in kl else float(np.mean(kl))
            rows.append(row)
    first, x = request.opened[0].label, "noise, in RMS of each tensor"
    on_all = [row for row in rows if row["noise_on"] == ALL]
    of_first = [row for row in rows if row["model"] == first]
    drawn = {f"score, noise on {ALL}": mean_lines(on_all, "model", "scale", "score")}
    if settings.groups == "each":
        drawn[f"score of {first}"] = mean_lines(of_first, "noise_on", "scale", "score")
    charts = [Chart(title, "", x, series, log_x=True) for title, series in drawn.items()]
    return Result("Robustness to noise", rows, charts, hidden=["scores", "without_noise"])


def layer_groups(scorer: WeightsScorer) -> dict[str, list[str]]:
    """Return the tensors of each group; a head may be tied to the embedding."""
    infos, model = scorer.engine.weights.infos, scorer.engine.model
    named = {ALL: [info.name for info in infos]}
    if (head := model.get_output_embeddings()) is not None:
        named[HEAD] = [name for name, one in model.named_parameters() if one is head.weight]
    layers = sorted({info.layer for info in infos if info.layer is not None})
    for some in map(np.ndarray.tolist, np.array_split(layers, min(3, len(layers)))):
        of_some = [info.name for info in infos if info.layer in some]
        named[f"layers {some[0]} to {some[-1]}" if len(some) > 1 else f"layer {some[0]}"] = of_some
    return named


def coverage(request: Request, settings: CoverageSettings) -> Result:
    """Count the examples that the start and trained models solve in several tries."""
    tries: dict[str, Float64[np.ndarray, "tries examples"]] = {}
    greedy: dict[str, Row] = {}
    count, temperature = settings.samples, settings.temperature
    with open_scorer(request, settings) as scorer:
        sign, base, units = scorer.sign, scorer.values_at(), scorer.deviations()
        tries[SAMPLED] = scorer.measured(Point(), count, temperature)[0]
        for scale in settings.scales:
            noise = {name: scale * unit for name, unit in units.items()}
            members = [scorer.values_at(Point((), noise, trial)) for trial in range(count)]
            tries[f"start, noise {scale:g}"] = np.array(members)
        for weights in request.opened:
            point, name = Point(((1.0, weights),)), f"{weights.label}, sampled"
            tries[name] = scorer.measured(point, count, temperature)[0]
            gain = PairedDifference.of(sign * (scorer.values_at(point) - base))
            greedy[name] = {"greedy_better": gain.higher, "worse": gain.lower, "p": gain.sign_test}
    at = {name: reductions(one, None, higher_is_better=sign > 0) for name, one in tries.items()}
    metric = next(iter(at[SAMPLED])).partition("@")[0]
    solved = {
        name: (some == 1 if metric == "pass" else sign * (some - base) > 0).any(axis=0)
        for name, some in tries.items()
    }
    rows: list[Row] = []
    at_k: list[Row] = []
    for name, one in solved.items():
        row: Row = {"tries": name}
        for key, some in at[name].items():
            k = int(key.partition("@")[2])
            row[f"{metric}@{k}"] = mean = score_and_interval(some)
            at_k.append({"tries": name, "k": k, "score": mean})
        row["solved" if metric == "pass" else "better_than_greedy"] = int(one.sum())
        row["not_by_the_start's_samples"] = int((one & ~solved[SAMPLED]).sum())
        row["only_by_the_start's_samples"] = int((solved[SAMPLED] & ~one).sum())
        either = {other: (one | some).sum() for other, some in solved.items()}
        both = {other: (one & some).sum() / max(1, either[other]) for other, some in solved.items()}
        rows.append({**row, "overlap": both, **greedy.get(name, {})})
    chart = Chart(f"{metric}@k", "", "k", mean_lines(at_k, "tries", "k", "score"), log_x=True)
    return Result(f"Coverage of {len(base)} examples", rows, [chart], hidden=["overlap"])


def score_and_interval(values: Values) -> Estimate:
    """Return the mean of scores over the examples that are known, with its 95 % interval."""
    score = score_of_values(0, "", values.tolist(), higher_is_better=True)
    return score.mean, confidence_interval(score, bootstrap=True)
