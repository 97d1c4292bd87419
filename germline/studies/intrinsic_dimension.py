"""Intrinsic dimension: the smallest random subspace that keeps most of an improvement.

A config is trained without changes, and then in `space=subspace` at growing dimensions, on the same
layers, batches and run seeds. With S the held-out score of a center, higher is better,

    (1)  kept(d) = mean over seeds of S_end(d) - S_start  /  that of the unchanged config

and the intrinsic dimension is the smallest d with kept(d) of at least `share`: 0.9, as in Li et al.
2018 (arXiv 1804.08838), who measured it with gradients and compared scores. Here improvements are
compared, because a pretrained model has a score before training.

The subspaces of a run seed are nested (see spaces/subspace.py), so a larger one contains the
solutions of a smaller one. If it nevertheless scores lower at equal budget, the strategy is the
reason. Every run has an ordinary run directory in the folder of the study: finished runs are
reused, interrupted ones are resumed.

Limits: all dimensions use the config's sigma and learning rate (in a subspace they have the same
meaning, change per weight). With few held-out examples or seeds, a neighboring dimension is as
likely as the result.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from germline.config import Config, Subspace, load_config
from germline.record import RunDirectory
from germline.report.matplotlib_plots import PlotPanel, draw_panels
from germline.run.build_fleet import engine_placement
from germline.run.build_parts import make_engine
from germline.strategies import make_strategy
from germline.strategies.sigma_adaptation import FIRST_GUESS
from germline.studies.run_folder import as_recorded, begin_or_resume, check_same_config
from germline.tasks import make_task
from germline.types import GermlineError, HeldOutScore

SHARE = 0.9
"""Share of the improvement of the unchanged config."""


@dataclass(frozen=True)
class DimensionRun:
    """One run.

    Attributes:
        dimension: dimension of its subspace; None for the unchanged config.
    """

    dimension: int | None
    seed: int
    start: HeldOutScore
    end: HeldOutScore


@dataclass(frozen=True)
class IntrinsicDimension:
    """The result of a study.

    Attributes:
        outcomes: the runs of the study.
        higher_is_better: whether a higher score is better.
        share: share of the improvement that must be kept.
    """

    outcomes: tuple[DimensionRun, ...]
    higher_is_better: bool
    share: float = SHARE

    @property
    def dimensions(self) -> list[int]:
        """Return the tried dimensions in increasing order."""
        return sorted(
            {outcome.dimension for outcome in self.outcomes if outcome.dimension is not None}
        )

    def end(self, dimension: int | None) -> float:
        """Return the mean held-out score that runs of a dimension ended with."""
        return statistics.fmean(one.end.mean for one in self._of(dimension))

    def improvement(self, dimension: int | None) -> float:
        """Return the mean improvement over run seeds; positive is better."""
        gains = [one.end.mean - one.start.mean for one in self._of(dimension)]
        return statistics.fmean(gains) * (1 if self.higher_is_better else -1)

    def kept(self, dimension: int) -> float:
        """Return the share of the improvement that a dimension keeps: equation (1).

        Raises:
            GermlineError: the unchanged config does not improve its score.
        """
        reference = self.improvement(None)
        if reference <= 0:
            raise GermlineError(
                f"study: the unchanged config does not improve its held-out score (change "
                f"{reference:.3g}), so no share of it can be kept: train longer (generations), or "
                "find sigma and learning rate with `germline probe`"
            )
        return self.improvement(dimension) / reference

    @property
    def smallest(self) -> int | None:
        """Return the intrinsic dimension; None if no tried dimension is enough."""
        enough = (dimension for dimension in self.dimensions if self.kept(dimension) >= self.share)
        return next(enough, None)

    def _of(self, dimension: int | None) -> list[DimensionRun]:
        return [outcome for outcome in self.outcomes if outcome.dimension == dimension]


def run_dimensions(
    config: Config, dimensions: Sequence[int], seeds: Sequence[int], out: Path, cma_up_to: int = 0
) -> Iterator[DimensionRun]:
    """Train the missing runs, seed after seed, and yield each run when it is finished.

    All configs are validated before the first run begins.

    Args:
        config: the config that is trained unchanged for comparison.
        dimensions: dimensions of the subspaces.
        seeds: run seeds; each has a subspace of its own.
        out: folder of the run directories.
        cma_up_to: largest dimension that full CMA-ES searches, from the config's sigma; larger
            ones are searched by the strategy of the config.

    Raises:
        GermlineError: the folder holds runs of another config, or a run cannot be made.
    """
    config = as_recorded(config)
    planned = [
        (dimension, seed, _config(config, dimension, seed, cma_up_to), _path(out, dimension, seed))
        for seed in seeds
        for dimension in (None, *dimensions)
    ]
    for _, _, wanted, path in planned:
        check_same_config(wanted, path)
    if not all((path / "run.json").exists() for _, _, _, path in planned):
        _check_unfit([wanted for _, _, wanted, _ in planned])
    for dimension, seed, wanted, path in planned:
        for _ in begin_or_resume(wanted, path) or ():
            pass
        scores = [one.score for one in RunDirectory.open(path).held_out()]
        yield DimensionRun(dimension, seed, scores[0], scores[-1])


def find_intrinsic_dimension(
    config: Config, found: Sequence[DimensionRun], share: float = SHARE
) -> IntrinsicDimension:
    """Return the result of a study from its runs."""
    return IntrinsicDimension(tuple(found), make_task(config.task).metric_higher_is_better, share)


def draw_share_kept(found: IntrinsicDimension, title: str, path: Path) -> None:
    """Draw the share kept over the dimension."""
    places = [float(dimension) for dimension in found.dimensions]
    curve = {
        "mean over run seeds": (places, [found.kept(dimension) for dimension in found.dimensions])
    }
    level = (found.share, f"{found.share:.0%}")
    panel = PlotPanel("share of the improvement", curve, level)
    enough = found.smallest
    marks = {} if enough is None else {f"{enough} dimensions": float(enough)}
    draw_panels(path, title, "dimension of the subspace", [panel], marks)


def _path(out: Path, dimension: int | None, seed: int) -> Path:
    name = "as-it-is" if dimension is None else f"dimension-{dimension:06d}"
    return out / f"{name}-seed-{seed}"


def _config(config: Config, dimension: int | None, seed: int, cma_up_to: int) -> Config:
    values: dict[str, Any] = config.model_dump()
    values["seed"] = seed
    # The study needs only the held-out scores before and after.
    values["held_out"]["every"] = config.generations
    values["record"]["tensorboard"] = False
    if dimension is not None:
        section = values["space"]
        chosen = ("include", "exclude", "layers", "unsupported")
        kept = {name: section[name] for name in chosen if name in section}
        values["space"] = {"kind": "subspace", "dimension": dimension, **kept}
        if dimension <= cma_up_to:
            values["strategy"] = _cma(values["strategy"])
    return load_config(values)


def _cma(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of full CMA-ES with the config's population and initial sigma."""
    sigma, unit = strategy["sigma"], strategy["sigma_unit"]
    measured = not isinstance(sigma, float) and "start" not in sigma
    if unit == "auto":
        unit = "rms" if measured else "constant"
    if not isinstance(sigma, float):
        # If sigma is calibrated, CMA-ES begins with the first sigma of the calibration.
        sigma = FIRST_GUESS[unit] if measured else sigma["start"]
    return {
        "kind": "cma",
        "population": strategy["population"],
        "sigma": sigma,
        "sigma_unit": unit,
    }


def _check_unfit(configs: Sequence[Config]) -> None:
    """Check that all configs can be searched and compared, before training.

    Raises:
        GermlineError: theta would not move, a dimension is too small for its strategy, or more
            than the selected layers have.
    """
    method = configs[0].method
    if not method.trains_center:
        raise GermlineError(
            f"study: method.kind={method.kind} does not change the weights, so the center does not "
            "improve: use method=es"
        )
    largest, most = configs[0], 0
    for one in configs:
        if isinstance(one.space, Subspace):
            make_strategy(
                one.strategy,
                run_seed=one.seed,
                generations=one.generations,
                dimension=one.space.dimension,
            )
            largest, most = max((largest, most), (one, one.space.dimension), key=itemgetter(1))
    make_engine(engine_placement(largest, 0))
