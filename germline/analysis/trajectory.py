"""The path of the center: its steps as the journal makes them, without any other checkpoint.

The updates of the journal are applied one after another. With the steps s_1 ... s_T of theta, of
the searched numbers (A and B of an adapter), and their sums x_t,

    (1)  G = s_i s_j                              Gram matrix of the steps
    (2)  straightness = |x_T| / sum |s_t|         1 / sqrt(T) for independent steps of one length
    (3)  learned = (|x_T|^2 - sum |s_t|^2) / |x_T|^2      share of the way that steps have in common
    (4)  alignment = mean cosine of consecutive steps
    (5)  principal directions: eigenvectors of the Gram matrix of x_t - mean x

Independent steps add up as squares, so (3) is 0 for a random walk and 1 - 1 / T for equal steps.
A random walk has explained shares (5) of 6 / (pi k)^2: 61 %, 15 %, 7 % (Antognini and
Sohl-Dickstein 2018, arXiv 1806.08805); a path is no random walk because its first directions
explain much. Of large models, an even sample of each tensor is followed, so that all positions
take `NUMBERS`. A run that followed gradients has the steps between its snapshots.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Float32, Float64

from germline.analysis.request import Request, Result
from germline.checkpoint import follows_gradients, snapshot_generations, with_steps
from germline.config.base import Section
from germline.engines.master_weights import Masters
from germline.record import JournalEntry, RunDirectory
from germline.record.atomic_files import Row
from germline.report.charts import Chart, Series
from germline.run.build_parts import strategy_of_run
from germline.run.weights import load_engine
from germline.types import GermlineError

NUMBERS = 1 << 26
"""Numbers of all positions together: 256 MB in fp32, and 1 GB while their steps are multiplied."""

WALK = "A random walk: first principal directions 0.61, 0.15, 0.07; learned and alignment 0."

HIDDEN = ("walk", "moved", "walked", "directions")


def trajectory(request: Request, settings: Section) -> Result:
    """Measure the path of every run."""
    rows = []
    for one in request.opened:
        if one.directory is None:
            raise GermlineError(f"analyze trajectory: {one.label} is no run: it has no journal")
        rows.append(request.row(one.label, _measure, one.directory, one.generation))
    return Result("Path of the center", rows, _charts(rows), notes=[WALK], hidden=HIDDEN)


def _measure(directory: RunDirectory, last: int) -> Mapping[str, Any]:
    entries = directory.journal.read(last + 1)
    most = NUMBERS // (len(entries) + 1)
    positions = [_sample(one, most) for one in _positions(directory, entries)]
    steps = np.diff(np.stack(positions), axis=0).astype(np.float64)
    return path_statistics(steps @ steps.T)


def _positions(directory: RunDirectory, entries: Sequence[JournalEntry]) -> Iterator[Masters]:
    """Yield the masters at the start and after each update, or of each snapshot."""

    def masters_of(generation: int) -> Masters:
        engine = load_engine(directory, generates=False, generation=generation)
        return cast("Masters", engine.weights)

    masters = masters_of(-1)
    yield masters
    if follows_gradients(entries):
        kept = snapshot_generations(directory.snapshots)
        yield from (masters_of(generation) for generation in kept if generation < len(entries))
        return
    for entry in with_steps(entries, strategy_of_run(directory.config, masters.dimension)):
        masters.apply(entry.update)
        yield masters


def _sample(weights: Masters, most: int) -> Float32[np.ndarray, " numbers"]:
    """Return an even sample of each searched tensor, scaled to the expected norm of all of it."""
    samples = []
    for info in weights.searched:
        values = weights.tensors[info.name].flatten()
        stride = math.ceil(len(values) * len(weights.searched) / most)
        sample = values[:: stride + (stride % 2 == 0)]  # odd: it meets all columns
        samples.append((sample * math.sqrt(len(values) / len(sample))).cpu().numpy())
    return np.concatenate(samples)


def path_statistics(gram: Float64[np.ndarray, "steps steps"]) -> dict[str, Any]:
    """Return equations (2) to (5) of a path, given the Gram matrix of its steps."""
    lengths = np.sqrt(np.diag(gram))
    moving = np.flatnonzero(lengths)
    if not len(moving):
        raise GermlineError("analyze trajectory: no update moved the center, so there is no path")
    gram, lengths, count = gram[np.ix_(moving, moving)], lengths[moving], len(moving)
    net, path, walk = math.sqrt(max(0.0, gram.sum())), lengths.sum(), math.sqrt((lengths**2).sum())
    sums = np.tril(np.ones((count + 1, count)), -1)  # x_t of the steps before it
    ways = sums @ gram @ sums.T
    centered = np.eye(count + 1) - 1 / (count + 1)
    values, vectors = np.linalg.eigh(centered @ ways @ centered)
    values, vectors = values[::-1].clip(min=0), vectors[:, ::-1]
    cosines = gram / np.outer(lengths, lengths)
    shares = values / values.sum()
    return {
        "steps": count,
        "path": path,
        "net": net,
        "walk": walk,
        "straightness": net / path,
        "of_a_walk": walk / path,
        "learned": 1 - (walk / net) ** 2 if net else None,
        "alignment": float(np.mean(np.diag(cosines, 1))) if count > 1 else None,
        "1st_direction": float(shares[0]),
        "2nd": float(shares[1]),
        "moved": np.sqrt(np.diag(ways).clip(min=0)).tolist(),
        "walked": np.sqrt(sums @ lengths**2).tolist(),
        "directions": (vectors[:, :2] * np.sqrt(values[:2])).tolist(),
    }


def _charts(rows: Sequence[Row]) -> list[Chart]:
    """Chart the paths in their two principal directions, and the distance from the start."""
    paths, distances = [], []
    for color, row in enumerate(rows):
        key, steps = row["key"], range(len(row["moved"]))
        first, second = zip(*row["directions"], strict=True)
        paths.append(Series(key, first, second, color=color))
        distances.append(Series(key, steps, row["moved"], color=color))
        distances.append(Series(f"{key}: walk", steps, row["walked"], color=color, style="dashed"))
    return [
        Chart("2nd principal direction", "", "1st principal direction", paths),
        Chart("distance from the start", "", "steps", distances),
    ]
