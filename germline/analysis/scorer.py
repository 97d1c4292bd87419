"""Score weights between and around models, on the held-out examples of a task.

A point is the start, plus shares of the changes of some models, plus noise:

    W = W_start + sum_i c_i (W_i - W_start) + noise

One engine serves one point at a time, which is written over the one before, tensor by tensor, from
the files of the models. The KL divergence is KL(point || start) along the texts of the point
(`evaluation.kl_divergence`); the engine serves both in turn.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float64
from pydantic import Field
from torch import Tensor

from germline import noise
from germline.analysis.weights import Request, Weights
from germline.config import InProcess, load_config
from germline.config.base import Section
from germline.engines.inprocess import InProcessEngine
from germline.episodes import model_turns
from germline.evaluation.behavior import Answer, behavior, verdict
from germline.evaluation.held_out import values_by_sample
from germline.evaluation.kl_divergence import KlDivergence, ReadTexts, measure_texts
from germline.fleet import LocalFleet
from germline.record.atomic_files import Row
from germline.run.build_parts import make_engine, make_graders
from germline.run.inference import EvaluationSplit, SourceEvaluation, open_evaluation
from germline.types import Completion, Evaluation, Example, GermlineError

Values = Float64[np.ndarray, " examples"]


class ScoreSettings(Section):
    """What weights are scored on: the settings of `germline analyze modes`."""

    task: str | None = None
    """Name of a task; default: that of the first run."""
    split: EvaluationSplit = "test"
    """Of the task's examples."""
    limit: Annotated[int, Field(ge=2)] | None = None
    """Number of examples, the first ones; default: all."""


@dataclass(frozen=True)
class Point:
    """Weights: start + sum of coefficient * (weights - start) + noise.

    A single coefficient of 1 gives these weights exactly. The Gaussian noise is that of
    `germline.noise`, the same for every model.

    Attributes:
        parts: coefficients and weights.
        noise: its standard deviation in each tensor that it is added to.
        trial: another one is other noise.
    """

    parts: tuple[tuple[float, Weights], ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    trial: int = 0

    def after(self, parts: tuple[tuple[float, Weights], ...], distance: float) -> "Point":
        """Return the point at a distance from other parts, in direction of this one."""
        scaled = [(distance * coefficient, weights) for coefficient, weights in self.parts]
        noise = {name: distance * size for name, size in self.noise.items()}
        return Point((*parts, *scaled), noise, self.trial)

    @property
    def key(self) -> str:
        """Names the point among those of the same sources."""
        parts = [f"{coefficient!r} {weights.label}" for coefficient, weights in self.parts]
        if self.noise:
            digest = hashlib.sha256(repr(sorted(self.noise.items())).encode()).hexdigest()[:8]
            parts.append(f"noise {digest} {self.trial}")
        return " + ".join(parts) or "start"

    def read(self, name: str, start: Tensor) -> Tensor:
        """Return one tensor, given its value at the start."""
        if len(self.parts) == 1 and self.parts[0][0] == 1:
            value = self.parts[0][1].read(name)
        else:
            value = start.clone()
            for coefficient, weights in self.parts:
                value.add_(weights.read(name) - start, alpha=coefficient)
        if name in self.noise:
            # A seed that no config has, so that no run was trained on this noise.
            seed = int.from_bytes(hashlib.sha256(b"germline analyze").digest()[:16])
            drawn = noise.weight_noise(seed, 0, self.trial, name, start.numel())
            value.add_(torch.from_numpy(drawn).reshape(start.shape), alpha=self.noise[name])
        return value


@dataclass
class WeightsScorer:
    """Scores points; `open_scorer` makes it. `sign` is -1 where a lower metric is better."""

    request: Request
    engine: InProcessEngine
    fleet: LocalFleet
    evaluated: SourceEvaluation
    sign: float
    _served: Point | None = None

    def measured(
        self, point: Point, samples: int = 1, temperature: float = 0.0
    ) -> tuple[Float64[np.ndarray, "samples examples"], Row]:
        """Return the metric of so many completions of each example, by default of greedy ones.

        NaN is missing. Of greedy completions there are facts as well, beside those of the start:
        `kl_per_token`, `kl_per_text` (nats; None of empty texts), `behavior` (the verdict) and
        `broken` (share).
        """
        key = f"{samples} at {temperature!r}: {point.key}"
        row = self.request.row(key, self._measure, point, samples, temperature)
        return np.array(row["samples"], dtype=np.float64), row["facts"]

    def values_at(self, point: Point = Point()) -> Values:
        """Return the metric of the greedy completions of a point, by default the start."""
        return self.measured(point)[0][0]

    def deviations(self, weights: Weights | None = None) -> dict[str, float]:
        """Return the root mean square of each tensor of the start, or of what weights changed."""
        sizes = {}
        for name in self.engine.serving:
            value = self.request.start.read(name)
            sized = value if weights is None else weights.read(name).sub_(value)
            sizes[name] = float(sized.square_().mean(dtype=torch.float64).sqrt())
        return sizes

    def norm(self, deviations: Mapping[str, float]) -> float:
        """Return the Euclidean norm of noise of these standard deviations."""
        sizes = {name: self.engine.serving[name].numel() for name in deviations}
        return math.sqrt(math.fsum(sizes[name] * one**2 for name, one in deviations.items()))

    def serve(self, point: Point) -> InProcessEngine:
        """Return the engine, which serves a point."""
        if self._served != point:
            for name, serving in self.engine.serving.items():
                serving.copy_(point.read(name, self.request.start.read(name)))
            self._served = point
        return self.engine

    def _measure(self, point: Point, samples: int, temperature: float) -> Row:
        evaluation, turns = self._answered(point, samples, temperature)
        metric = self.evaluated.task.metric
        values = values_by_sample(evaluation, metric, self.evaluated.examples)
        if np.isnan(values).all():
            raise GermlineError(
                f"{self.request.what}: no answer has the metric {metric}: see what `germline eval` "
                "says of it"
            )
        facts = self._facts(point, turns) if samples == 1 else {}
        return {"samples": values.tolist(), "facts": facts}

    def _answered(
        self, point: Point, samples: int = 1, temperature: float = 0.0
    ) -> tuple[Evaluation, list[tuple[Example, Completion]]]:
        """Return the evaluation of a point, and all turns of the model with what it was asked."""
        self.serve(point)
        decoding = replace(self.evaluated.decoding, temperature=temperature)
        evaluation = self.fleet.evaluate_center(self.evaluated.examples, decoding, samples)
        asked = {example.index: example for example in self.evaluated.examples}
        turns = (model_turns(asked[one.example], one) for one in evaluation.rollouts)
        return evaluation, [*chain.from_iterable(turns)]

    @cached_property
    def _start_answers(self) -> list[Answer]:
        return [Answer.to(*turn) for turn in self._answered(Point())[1]]

    def _facts(self, point: Point, turns: Sequence[tuple[Example, Completion]]) -> Row:
        """Compare the texts of a point with the start."""

        def reads(point: Point) -> ReadTexts:
            return lambda *texts: self.serve(point).read(*texts)

        examples, written = map(list, zip(*turns, strict=True))
        (read,) = measure_texts(reads(point), reads(Point()), [None], examples, [written])
        answers = [
            Answer.to(*turn, improbable=one.improbable)
            for turn, one in zip(turns, read, strict=True)
        ]
        before, special_ids = self._start_answers, self.engine.special_ids
        now, then = (behavior(some, before, special_ids) for some in (answers, before))
        kl = KlDivergence.of(read) if any(one.tokens for one in read) else None
        facts = {"kl_per_token": kl and kl.per_token, "kl_per_text": kl and kl.per_text}
        return {**facts, "behavior": verdict(then, now).word, "broken": now["broken"]}


@contextmanager
def open_scorer(request: Request, settings: ScoreSettings) -> Iterator[WeightsScorer]:
    """Load the start model of the sources, and the held-out examples of the first run.

    Raises:
        GermlineError: no task is known, or the start has other tensors than the model.
    """
    run = next((one.directory for one in request.opened if one.directory), None)
    source = run.path if run else request.start.path
    if source is None:
        raise GermlineError(f"{request.what}: save the start: its folder has the tokenizer")
    if run is None and settings.task is None:
        raise GermlineError(f"{request.what}: no source is a run: name a task (task=countdown)")
    task = load_config({"task": settings.task}).task if settings.task else None
    evaluated = open_evaluation(str(source), task, settings.split, settings.limit, (), None)
    config = evaluated.config
    if not isinstance(config.engine, InProcess):
        config = config.model_copy(update={"engine": InProcess()})
    engine = make_engine(config, searched=False)
    assert isinstance(engine, InProcessEngine)
    with closing(engine), make_graders(config, evaluated.task) as graders:
        if missing := {*engine.serving} - {*request.names}:
            raise GermlineError(
                f"{request.what}: {min(missing)} is not in all sources, but in the model that is "
                "scored: name models of one architecture"
            )
        fleet = LocalFleet(engine, graders, config.microbatch)
        sign = 1.0 if evaluated.task.metric_higher_is_better else -1.0
        yield WeightsScorer(request, engine, fleet, evaluated, sign)
