"""Policy gradients by backpropagation: what the methods share that compute one here.

The model reads a few completions at a time behind their prompts, and the gradients of the tensors
that the space selects are summed in fp32, for every serving dtype. In addition to evaluation this
takes the memory of the activations of these completions, and of one fp32 number per searched one.

Limits: seeds cannot repeat a gradient. A run resumes from its newest snapshot, to the same bits on
the same machine, and cannot be replayed from its journal. One engine; its model is run forwards and
backwards in one process. Single completions only.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from germline import noise
from germline.config import Config
from germline.engines.inprocess import InProcessEngine
from germline.engines.model_tensors import replaced_forwards
from germline.fleet import Fleet
from germline.methods.method import Evaluated, Learned, Method
from germline.methods.reward_term import RewardTerm
from germline.methods.sampled_batch import mean_rewards
from germline.protocols import EpisodeTask, Shaping, Strategy, Task
from germline.types import (
    Completion,
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    SeedPerturbation,
    Update,
)


@dataclass(frozen=True)
class TextRow:
    """A completion of an example."""

    example: Example
    completion: Completion


class TokenOutputs(NamedTuple):
    """What the model computes at the tokens of a completion.

    Attributes:
        log_probs: of each token, `[tokens]`.
        hidden: input of the LM head that predicts each token, without gradients, `[tokens, width]`.
    """

    log_probs: Tensor
    hidden: Tensor


def token_outputs(
    engine: InProcessEngine, rows: Sequence[TextRow], temperature: float
) -> list[TokenOutputs]:
    """Let the center read completions; log-probabilities are those at a temperature."""
    packed = engine.pack_completions(
        [row.example for row in rows], [[row.completion for row in rows]]
    )
    tokens = packed.rows.to(engine.device)
    positions = torch.arange(tokens.shape[1], device=engine.device).repeat(len(rows), 1)
    kept = None if packed.positions is None else packed.positions.to(engine.device)
    inputs: list[Tensor] = []
    head = engine.model.get_output_embeddings()
    seen = head.register_forward_pre_hook(lambda _head, given: inputs.append(given[0].detach()))
    with seen, engine.head_input.only(kept):
        logits = engine.model(
            tokens, position_ids=positions, logits_to_keep=packed.keep, use_cache=False
        ).logits
    return [
        TokenOutputs(chosen_log_probs(row[span], one.completion, temperature), hidden[span])
        for row, hidden, span, one in zip(logits, inputs[0], packed.spans, rows, strict=True)
    ]


def chosen_log_probs(logits: Tensor, completion: Completion, temperature: float) -> Tensor:
    """Return the log-probabilities of the tokens of a completion, from logits at them."""
    tokens = torch.tensor(completion.tokens, device=logits.device)[:, None]
    return (logits.float() / temperature).log_softmax(-1).gather(-1, tokens)[:, 0]


def summed_gradients(
    engine: InProcessEngine, count: int, rows_per_pass: int, objective: Callable[[slice], Tensor]
) -> dict[str, Tensor]:
    """Return the gradient of every searched tensor, in fp32, on the model's device.

    Args:
        engine: serves the center; its weights are not changed.
        count: number of rows.
        rows_per_pass: rows that are read at once.
        objective: returns what some rows add to the objective, computed by the model.
    """
    searched = {info.name for info in engine.weights.searched}
    adapter = adapter_parameters(engine)
    known = (*engine.model.named_parameters(), *adapter.items())
    parameters = {name: one for name, one in known if name in searched}
    sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
    for start in range(0, count, rows_per_pass):
        with tracked(parameters.values()), adapter_applied(engine, adapter):
            objective(slice(start, min(start + rows_per_pass, count))).backward()
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    sums[name].add_(parameter.grad)
    return sums


def adapter_parameters(engine: InProcessEngine) -> dict[str, nn.Parameter]:
    """Return the adapter that is trained, in fp32 on the model's device; empty without one."""
    names = [name for layer in engine.weights.adapted for name in layer.adapter_names]
    masters = {name: engine.weights.tensors[name].to(engine.device) for name in names}
    return {name: nn.Parameter(one, requires_grad=False) for name, one in masters.items()}


@contextmanager
def adapter_applied(engine: InProcessEngine, adapter: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Add an adapter to the adapted layers of the model during a `with` block, differentiably."""
    forwards = []
    for layer in engine.weights.adapted:
        assert engine.weights.space is not None
        module = engine.model.get_submodule(layer.name.removesuffix(".weight"))
        a, b = (adapter[name] for name in layer.adapter_names)
        forwards.append((module, _adapted(module.forward, a, b, engine.weights.space.scale)))
    with replaced_forwards(forwards):
        yield


def _adapted(
    plain: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, scale: float
) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        base = plain(x)
        change = nn.functional.linear(nn.functional.linear(x.to(a.dtype), a), b)
        return base + (scale * change).to(base.dtype)

    return forward


def step_theta(
    engine: InProcessEngine, gradients: Mapping[str, Tensor], update: Update, step_index: int
) -> None:
    """Apply a step of the optimizer along gradients, and serve the result."""
    weights = engine.weights
    for info in weights.searched:
        weights.step(info, gradients[info.name], update.learning_rate, step_index)
    weights.check_finite(update)
    engine.refresh()


def clip_norm(gradients: Mapping[str, Tensor], max_norm: float) -> None:
    """Shorten gradients, in place, to a norm of at most `max_norm`, all of them together."""
    norm = math.hypot(*(float(one.norm()) for one in gradients.values()))
    for one in gradients.values() if norm > max_norm else ():
        one.mul_(max_norm / norm)


@contextmanager
def tracked(parameters: Collection[nn.Parameter]) -> Iterator[None]:
    """Enable gradients of some parameters during a `with` block."""
    try:
        for parameter in parameters:
            parameter.requires_grad = True
        with torch.enable_grad():
            yield
    finally:
        for parameter in parameters:
            parameter.requires_grad = False
            parameter.grad = None


def engine_that_learns(fleet: Fleet) -> InProcessEngine:
    """Return the one engine of a fleet, whose model this process can run backwards."""
    engine = getattr(fleet, "engine", None)
    if isinstance(engine, InProcessEngine):
        return engine
    raise GermlineError("backpropagation needs the one engine of engine.kind=inprocess")


class GradientMethod(Method):
    """Base of the methods in which theta follows gradients of single completions."""

    _metrics: Mapping[str, Any] = {}

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse a task of episodes."""
        if isinstance(task, EpisodeTask):
            raise GermlineError(
                f"method.kind={config.method.kind} follows the gradient of single completions, "
                f"and task.kind={config.task.kind} has episodes of several turns: "
                "use method.kind=es"
            )

    def apply(self, fleet: Fleet, update: Update | MeanUpdate) -> None:
        """Change theta along gradients of what was evaluated last."""
        self._metrics = {"backward_tokens": 0}
        if isinstance(update, MeanUpdate) or update.skipped:
            fleet.apply(update)
        else:
            self._metrics = self.train(engine_that_learns(fleet), update)

    def train(self, engine: InProcessEngine, update: Update) -> Mapping[str, Any]:
        """Take the steps of an update; return metrics, `backward_tokens` among them."""
        raise NotImplementedError

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return what the strategy, the terms and the last update report, by name."""
        return {**super().metrics(update), **self._metrics}


@dataclass(frozen=True)
class Sample(TextRow):
    """A completion of the center, and its reward."""

    reward: float


class SampledGradientMethod(GradientMethod):
    """The center samples completions, and theta follows gradients of those that are selected."""

    temperature: float | None = None
    """Of the log-probabilities; None: that of the samples."""
    rows: Sequence[Sample] = ()
    """The selected samples of the last generation."""
    _batch: Sequence[Example] = ()

    def __init__(
        self, strategy: Strategy, shape: Shaping, terms: Sequence[RewardTerm] = ()
    ) -> None:
        super().__init__(strategy, _no_utilities, terms)

    def ask(self, generation: int) -> Population:
        """Return a member for each sample of an example; all are the center."""
        members = tuple(
            SeedPerturbation(self.run_seed, generation, number, 1, 0.0)
            for number in range(self.section.group_size)
        )
        return Population(generation, members, antithetic=False)

    def evaluate(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluated:
        """Let the center sample."""
        samples = self.sample_center(
            fleet, batch, decoding, self.section.group_size, self.section.temperature
        )
        self._batch = batch
        return Evaluated(rollouts=samples, members=samples)

    def selected(
        self, rewards: Float[np.ndarray, "samples examples"]
    ) -> Bool[np.ndarray, "samples examples"]:
        """Say which samples the gradient is computed from, given rewards, NaN where missing."""
        raise NotImplementedError

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Select samples; the utility of a member is the share of its samples that are."""
        samples, count = evaluated.rollouts, len(self._batch)
        selected = self.selected(samples.rewards)
        completions = [one.completion for one in samples.rollouts]
        self.rows = [
            Sample(self._batch[place], completion, float(samples.rewards[sample, place]))
            for sample, place in np.argwhere(selected).tolist()
            if (completion := completions[sample * count + place]).tokens
        ]
        means, shares = mean_rewards(samples.rewards), selected.mean(axis=1)
        update = self.strategy.tell(population, shares, means)
        assert isinstance(update, Update)
        return Learned(
            fitness=means,
            mean_rewards=means,
            utilities=shares,
            update=replace(update, backpropagated=True),
            power=None,
            metrics={
                "best_member": None,  # fitness is that of samples
                "groups_without_signal": float(1 - selected.any(axis=0).mean()),
                "truncated": float(np.mean([one.finish == "length" for one in completions])),
            },
        )

    def steps(
        self,
        engine: InProcessEngine,
        rows: Sequence[Any],
        update: Update,
        objective: Callable[[Sequence[Any], list[TokenOutputs]], Tensor],
    ) -> Iterator[tuple[int, int]]:
        """Take a step for each minibatch of each epoch; yield its index in the run, and its tokens.

        Args:
            engine: whose theta is changed.
            rows: `TextRow`s that are learned from.
            update: has the learning rate.
            objective: returns a sum over the tokens of some rows, given what the model computes;
                theta ascends the mean over the tokens of a minibatch.
        """
        section = self.section
        temperature = self.temperature or section.temperature
        first = update.generation * section.epochs
        for epoch in range(first, first + section.epochs):
            order = noise.epoch_permutation(self.run_seed, "minibatches", epoch, len(rows))
            for part, places in enumerate(np.array_split(order, section.minibatches)):
                some = [rows[place] for place in places]
                if not some:
                    continue
                some.sort(key=lambda row: len(row.completion.tokens))
                tokens = sum(len(row.completion.tokens) for row in some)

                def of_rows(at: slice, some: Any = some, tokens: int = tokens) -> Tensor:
                    outputs = token_outputs(engine, some[at], temperature)
                    return objective(some[at], outputs) / tokens

                gradients = summed_gradients(engine, len(some), section.rows, of_rows)
                clip_norm(gradients, section.max_grad_norm)
                index = epoch * section.minibatches + part
                step_theta(engine, gradients, update, index)
                yield index, tokens


def _no_utilities(evaluation: Evaluation, **_others: Any) -> np.ndarray:
    """Return 0 for every member: they are not compared, and no direction has a coefficient."""
    return np.zeros(len(evaluation.rewards))
