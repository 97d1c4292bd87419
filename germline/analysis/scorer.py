"""Score weights between and around models, on the held-out examples of a task.

A point is the start, plus shares of the changes of some models, plus noise:

    W = W_start + sum_i c_i (W_i - W_start) + noise

One engine serves the start model. Each point is written over it, tensor by tensor, and scored; then
the start is written back from its files, never by subtraction. The KL divergence is KL(point ||
start) along the texts of the point (`evaluation.kl_divergence`), of those whose logits fit in
memory.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float64
from pydantic import BeforeValidator, Field
from torch import Tensor

from germline import noise
from germline.analysis.request import KeptRows, Request
from germline.analysis.weights import Weights
from germline.config import InProcess, load_config
from germline.config.base import Section
from germline.engines.inprocess import InProcessEngine
from germline.episodes import model_turns
from germline.evaluation.behavior import Answer, behavior, verdict
from germline.evaluation.held_out import values_by_sample
from germline.evaluation.kl_divergence import KlDivergence, text_divergence
from germline.evaluation.score_difference import FEW_CHANGED
from germline.evaluation.statistics import (
    Interval,
    bootstrap_interval,
    mcnemar,
    wilson_interval,
)
from germline.fleet import LocalFleet
from germline.record.atomic_files import Row
from germline.rollout import center_microbatch
from germline.run.build_parts import make_engine, make_graders
from germline.run.inference import EvaluationSplit, SourceEvaluation, open_evaluation
from germline.types import Completion, Example, GermlineError

LOGITS_IN_MEMORY = 1 << 28
"""Numbers of a point's logits that wait for those of the start: 1 GB in fp32."""

COLUMNS = {
    "score": "score",
    "kl_per_token": "KL per token",
    "kl_per_text": "KL per text",
    "behavior": "behavior",
    "broken": "broken",
}

Positive = Annotated[float, Field(gt=0)]
Values = Float64[np.ndarray, " examples"]
Estimate = tuple[float, Interval]
Turns = Sequence[tuple[Example, Completion]]

Numbers = Annotated[
    tuple[Positive, ...],
    BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given),
]
"""Positive numbers; on the command line with commas between them."""


class ScoreSettings(Section):
    """What weights are scored on: the settings of `germline analyze modes`."""

    task: str | None = None
    """Name of a task; default: that of the first run."""
    split: EvaluationSplit = "test"
    """Of the task's examples."""
    limit: Annotated[int, Field(ge=2)] | None = None
    """Number of examples, the first ones; default: all."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """`engine.threads`."""


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

    @property
    def key(self) -> str:
        """Names the point among those of the same sources."""
        parts = [f"{coefficient!r} {weights.label}" for coefficient, weights in self.parts]
        if self.noise:
            digest = hashlib.sha256(repr(sorted(self.noise.items())).encode()).hexdigest()[:8]
            parts.append(f"noise {digest} {self.trial}")
        return " + ".join(parts)

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


@dataclass(frozen=True)
class PointScore:
    """What was measured of a point.

    Attributes:
        samples: the metric `[samples][examples]`; NaN: missing.
        facts: `kl_per_token`, `kl_per_text` (nats; None of empty texts), `behavior` (the verdict
            beside the start) and `broken` (share); none where texts were sampled several times.
    """

    samples: Float64[np.ndarray, "samples examples"]
    facts: Row

    @property
    def values(self) -> Values:
        """The metric of each example, the mean of its samples."""
        return self.samples.mean(axis=0)

    @property
    def score(self) -> Estimate:
        """The mean over the examples whose metric is known, with its 95 % interval."""
        known = self.values[np.isfinite(self.values)]
        mean, is_share = float(known.mean()), np.isin(known, (0.0, 1.0)).all()
        return mean, wilson_interval(mean, len(known)) if is_share else bootstrap_interval(known)

    @property
    def row(self) -> Row:
        """The values of `COLUMNS`."""
        return {"score": self.score, **self.facts}


@dataclass
class WeightsScorer:
    """Scores points; `open_scorer` makes it. `sign` is -1 where a lower metric is better."""

    engine: InProcessEngine
    fleet: LocalFleet
    start: Weights
    evaluated: SourceEvaluation
    request: Request
    kept: KeptRows
    sign: float
    _start_answers: list[Answer] = field(default_factory=list)

    def scores_at(
        self, point: Point = Point(), samples: int = 1, temperature: float = 0.0
    ) -> PointScore:
        """Score a point, or return its score that an interrupted analysis has kept.

        Args:
            point: default: the start.
            samples: completions of each example.
            temperature: of the completions; default: greedy.
        """
        key = f"{samples} at {temperature!r}: {point.key}"
        self.request.watch(f"{self.request.what}: {point.key or 'start'}")
        row = self.kept.row(key, partial(self._measure, point, samples, temperature))
        return PointScore(np.array(row["samples"], dtype=np.float64), row["facts"])

    def deviations(self, weights: Weights | None = None) -> dict[str, float]:
        """Return the root mean square of each tensor of the start, or of what weights changed."""
        sizes = {}
        for name in self.engine.serving:
            value = self.start.read(name)
            sized = value if weights is None else weights.read(name).sub_(value)
            sizes[name] = float(sized.square_().mean(dtype=torch.float64).sqrt())
        return sizes

    def norm(self, deviations: Mapping[str, float]) -> float:
        """Return the Euclidean norm of noise of these standard deviations."""
        sizes = {name: self.engine.serving[name].numel() for name in deviations}
        return math.sqrt(math.fsum(sizes[name] * one**2 for name, one in deviations.items()))

    def _measure(self, point: Point, samples: int, temperature: float) -> Row:
        if samples == 1 and point.key and not self._start_answers:
            self._measure(Point(), 1, temperature)
        task, examples = self.evaluated.task, self.evaluated.examples
        decoding = replace(self.evaluated.decoding, temperature=temperature)
        by_index = {example.index: example for example in examples}
        try:
            self._write(point)
            evaluation = self.fleet.evaluate_center(examples, decoding, samples)
            turns = [
                turn
                for rollout in evaluation.rollouts
                for turn in model_turns(by_index[rollout.example], rollout)
            ]
            read = [] if samples > 1 else list(self._logits(turns))
        finally:
            self._write(Point())
        values = values_by_sample(evaluation, task.metric, examples)
        if np.isnan(values).all():
            raise GermlineError(
                f"{self.request.what}: no answer has the metric {task.metric}: see what "
                "`germline eval` says of it"
            )
        facts = self._facts(turns, read) if samples == 1 else {}
        return {"samples": values.tolist(), "facts": facts}

    def _facts(self, turns: Turns, ours: Sequence[Tensor]) -> Row:
        """Compare the texts of a point with the start, which the engine serves again."""
        written = [completion for _, completion in turns if completion.tokens]
        read = [
            text_divergence(*one) for one in zip(ours, self._logits(turns), written, strict=False)
        ]
        # A share of improbable texts needs all of them.
        found = iter([one.improbable for one in read] if len(read) == len(written) else ())
        answers = [
            Answer(one.prompt, said, one.answer, next(found, None) if said.tokens else None)
            for one, said in turns
        ]
        self._start_answers = self._start_answers or answers
        start, special_ids = self._start_answers, self.engine.special_ids
        now, before = (behavior(some, start, special_ids) for some in (answers, start))
        kl = KlDivergence.of(read) if read else None
        return {
            "kl_per_token": kl and kl.per_token,
            "kl_per_text": kl and kl.per_text,
            "behavior": verdict(before, now).word,
            "broken": now["broken"],
        }

    def _write(self, point: Point) -> None:
        for name, serving in self.engine.serving.items():
            serving.copy_(point.read(name, self.start.read(name)))

    def _logits(self, turns: Turns) -> Iterator[Tensor]:
        """Yield the logits of the first texts that have tokens, `[tokens, vocabulary]`."""
        size = center_microbatch(self.fleet.microbatch).examples
        written, left = [turn for turn in turns if turn[1].tokens], LOGITS_IN_MEMORY
        for first in range(0, len(written), size):
            examples, completions = zip(*written[first : first + size], strict=True)
            for logits in self.engine.read([None], examples, [completions])[0]:
                yield logits
                left -= logits.numel()
                if left < 0:
                    return


@contextmanager
def open_scorer(request: Request, settings: ScoreSettings) -> Iterator[WeightsScorer]:
    """Load the start model of the sources, and the held-out examples of the first run.

    Raises:
        GermlineError: no task is known, or the start has other tensors than the model.
    """
    opened = request.opened
    start = opened[0].base or opened[0]
    source = next((str(one.directory.path) for one in opened if one.directory), request.start)
    if not isinstance(source, str | Path) or (settings.task is None and source == request.start):
        raise GermlineError(
            f"{request.what}: weights are scored on the task of a run: name a run among the "
            "sources, or a task (task=countdown) and the start model (--start MODEL)"
        )
    task = load_config({"task": settings.task}).task if settings.task else None
    evaluated = open_evaluation(str(source), task, settings.split, settings.limit, (), None)
    config = evaluated.config
    section = config.engine if isinstance(config.engine, InProcess) else InProcess()
    section = section.model_copy(update={"threads": settings.threads or section.threads})
    config = config.model_copy(update={"engine": section})
    with ExitStack() as stack:
        engine = make_engine(config, searched=False)
        stack.callback(engine.close)
        assert isinstance(engine, InProcessEngine)
        for one, (name, serving) in product((start, *opened), engine.serving.items()):
            if one.shapes.get(name) != tuple(serving.shape):
                raise GermlineError(
                    f"{request.what}: {name} of shape {list(serving.shape)} is not in {one.label}, "
                    "but in the model that is scored: name models of one architecture"
                )
        graders = make_graders(config, evaluated.task)
        stack.callback(graders.close)
        fleet = LocalFleet(engine, graders, config.microbatch)
        sign = 1.0 if evaluated.task.metric_higher_is_better else -1.0
        kept = request.kept_rows(settings)
        yield WeightsScorer(engine, fleet, start, evaluated, request, kept, sign)


def mean_and_interval(values: Values) -> Estimate:
    """Return the mean over the examples that are known, with its 95 % interval."""
    known = values[np.isfinite(values)]
    return float(known.mean()), bootstrap_interval(np.round(known, 12))  # 0.3 - 0.1 is not 0.2


def certain_sign(values: Values) -> int:
    """Return the sign of the mean, 0 if chance explains it: as `is_clearly_better` decides it."""
    known = np.round(values[np.isfinite(values)], 12)
    low, high = bootstrap_interval(known)
    higher, lower = int((known > 0).sum()), int((known < 0).sum())
    is_chance = higher + lower < FEW_CHANGED and mcnemar(higher, lower) > 0.05
    return 0 if is_chance else int(low > 0) - int(high < 0)
