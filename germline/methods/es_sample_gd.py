"""Sample with an evolution strategy, optimize with gradients: which of the two makes ES work?

An evolution strategy explores by perturbing weights and learns by weighting the perturbations. Here
the two are separate: perturbed members generate the rollouts, and theta follows a policy gradient
on those rollouts, computed by backpropagation. Alternatively the center explores by sampling
tokens, as policy gradient methods do; the update stays the same.

    exploration: weights        member i generates with theta + s_i sigma eps_i
    exploration: temperature    "member" i is the center, with its own sampling noise
    advantage: example          each reward is shaped among those of the members on its example
    advantage: member           every completion of a member has the member's utility, as in ES

Of R completions y_r with advantages A_r, theta being the center's weights and t a token,

    (1)  g = d/d theta  1/R sum_r A_r sum_t log p_theta(y_rt)                      REINFORCE
    (2)  g = d/d theta  1/R sum_r sum_t min(q_rt A_r, clip(q_rt, 1 - c, 1 + c) A_r)
         with q_rt = p_theta(y_rt) / p_r(y_rt), and p_r the member that wrote y_r

(1) treats completions of perturbed members as if the center had written them. (2) weights each
token by the ratio of its probabilities under the center and under the member that wrote it, clipped
to 1 +- c (Schulman et al. 2017, arXiv 1707.06347, equation 7, with tokens as actions).
Probabilities are those at the sampling temperature, or at 1 for greedy completions.

Then theta <- theta + step(g), by the optimizer of the strategy. The step changes the tensors that
the space selects, as a whole: with `space.kind=low_rank` members explore by low-rank noise, and the
step has full rank. Gradients are summed in fp32, a few completions at a time, for every serving
dtype. In addition to evaluation this takes the memory of the activations of those completions, and
of one fp32 number per searched number.

Limits: seeds cannot repeat a gradient. A run resumes from its newest snapshot, to the same bits on
the same machine, and cannot be replayed from its journal. One engine; its model is run forwards and
backwards in one process.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from germline.config import Config, EsSampleGradientDescent
from germline.engines.inprocess import InProcessEngine
from germline.methods.method import Evaluated, Learned, Method
from germline.methods.reward_term import RewardTerm
from germline.protocols import EpisodeTask, Fleet, Strategy, Task
from germline.shaping import utilities
from germline.types import (
    Completion,
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Perturbation,
    Population,
    Rollout,
    Update,
    UpdateSize,
)


@dataclass(frozen=True)
class AdvantageRow:
    """A completion, the member that wrote it (None: the center), and its advantage."""

    member: Perturbation | None
    example: Example
    completion: Completion
    advantage: float


@dataclass(frozen=True)
class PolicyGradient:
    """Computes the gradient: equation (2), or (1) where `clip` is None."""

    temperature: float = 1.0
    clip: float | None = None
    rows_per_pass: int = 32

    def of(
        self, engine: InProcessEngine, rows: Sequence[AdvantageRow], count: int
    ) -> Mapping[str, Tensor]:
        """Return the gradient of every searched tensor, in fp32, on the model's device.

        Args:
            engine: serves the center; its weights are not changed.
            rows: completions whose advantage is not 0.
            count: R, the number of all completions.
        """
        searched = {info.name for info in engine.weights.searched}
        parameters = {n: p for n, p in engine.model.named_parameters() if n in searched}
        sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
        for start in range(0, len(rows), self.rows_per_pass):
            some = rows[start : start + self.rows_per_pass]
            before = None if self.clip is None else self._as_written(engine, some)
            with _tracked(list(parameters.values())):
                objective = self._objective(self._likelihoods(engine, some), some, before)
                (objective / count).backward()
                for name, parameter in parameters.items():
                    if parameter.grad is not None:
                        sums[name].add_(parameter.grad)
        return sums

    def _objective(
        self, now: Sequence[Tensor], rows: Sequence[AdvantageRow], before: Sequence[Tensor] | None
    ) -> Tensor:
        total = now[0].new_zeros(())
        for place, (row, likely) in enumerate(zip(rows, now, strict=True)):
            if before is None or self.clip is None:
                total = total + row.advantage * likely.sum()
            else:
                ratio = (likely - before[place]).exp()
                bounded = ratio.clamp(1 - self.clip, 1 + self.clip)
                total = total + torch.minimum(ratio * row.advantage, bounded * row.advantage).sum()
        return total

    def _likelihoods(self, engine: InProcessEngine, rows: Sequence[AdvantageRow]) -> list[Tensor]:
        """Return log p_theta of every token of every completion."""
        sheet = engine.pack_completions(
            [one.example for one in rows], [[one.completion for one in rows]]
        )
        tokens = sheet.rows.to(engine.device)
        positions = torch.arange(tokens.shape[1], device=engine.device).repeat(len(rows), 1)
        kept = None if sheet.positions is None else sheet.positions.to(engine.device)
        with engine.head_input.only(kept):
            logits = engine.model(
                tokens, position_ids=positions, logits_to_keep=sheet.keep, use_cache=False
            ).logits
        return [
            self._chosen(row[span], one.completion)
            for row, span, one in zip(logits, sheet.spans, rows, strict=True)
        ]

    def _as_written(self, engine: InProcessEngine, rows: Sequence[AdvantageRow]) -> list[Tensor]:
        """Return log p_r of every token: its log probability under the member that wrote it."""
        log_probabilities = []
        for one in rows:
            logits = engine.read([one.member], [one.example], [[one.completion]])[0][0]
            log_probabilities.append(self._chosen(logits.clone(), one.completion))
        return log_probabilities

    def _chosen(self, logits: Tensor, completion: Completion) -> Tensor:
        tokens = torch.tensor(completion.tokens, device=logits.device)[:, None]
        return (logits.float() / self.temperature).log_softmax(-1).gather(-1, tokens)[:, 0]


class EsSampleGradientDescentMethod(Method):
    """Theta follows the policy gradient of the members' rollouts."""

    def __init__(
        self, config: Config, strategy: Strategy, terms: Sequence[RewardTerm] = ()
    ) -> None:
        super().__init__(strategy, partial(utilities, config.shaping), terms)
        assert isinstance(config.method, EsSampleGradientDescent)
        self.section = config.method
        self._evaluated: tuple[Population, Sequence[Example], Evaluation, Decoding] | None = None
        self._read = 0  # tokens of the last gradient

    @classmethod
    def from_config(
        cls, config: Config, strategy: Strategy, task: Task | None, terms: Sequence[RewardTerm]
    ) -> "EsSampleGradientDescentMethod":
        """Make the method of a run, see `Method.from_config`."""
        return cls(config, strategy, terms)

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse a task of episodes."""
        if isinstance(task, EpisodeTask):
            raise GermlineError(
                "method.kind=es_sample_gd follows the gradient of single completions, and "
                f"task.kind={config.task.kind} has episodes of several turns: "
                "use method.kind=es"
            )

    def ask(self, generation: int) -> Population:
        """Return the members; with `exploration: temperature`, all of them equal the center."""
        population = super().ask(generation)
        if self.section.exploration == "weights":
            return population
        members = tuple(replace(member, sigma=0.0) for member in population.seed_perturbations())
        return replace(population, members=members, antithetic=False)

    def evaluate_members(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate every member, or the center as many times with different sampling noise."""
        if self.section.exploration == "weights":
            evaluation = super().evaluate_members(fleet, population, batch, decoding)
        else:
            evaluation = self.evaluate_center_with_terms(fleet, batch, decoding, len(population))
        self._evaluated = population, batch, evaluation, decoding
        return evaluation

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Learn as an evolution strategy does; theta does not follow the update."""
        learned = super().learn(population, evaluated)
        if not isinstance(learned.update, Update):
            return learned
        return replace(learned, update=replace(learned.update, backpropagated=True))

    def apply(self, fleet: Fleet, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply a step of the optimizer along the gradient g of the last evaluation."""
        engine = getattr(fleet, "engine", None)
        if not isinstance(engine, InProcessEngine) or self._evaluated is None:
            raise GermlineError(
                "method.kind=es_sample_gd follows the gradient of what an engine of "
                "engine.kind=inprocess has just evaluated"
            )
        if isinstance(update, MeanUpdate) or update.skipped:
            return fleet.apply(update)
        population, batch, evaluation, decoding = self._evaluated
        rows = self._rows(population, batch, evaluation)
        completions = [row.completion for row in rows]
        self._read = sum(one.prompt_tokens + len(one.tokens) for one in completions)
        objective = PolicyGradient(
            decoding.temperature or 1.0, self.section.clip, self.section.rows
        )
        gradient = objective.of(engine, rows, evaluation.rewards.size)
        weights = engine.weights
        for info in weights.searched:
            master = weights.tensors[info.name]
            weights.optimizer.step(
                info.name,
                master,
                gradient[info.name].to(master.device),
                update.learning_rate,
                update.generation,
                weights.units[info.name],
            )
        weights.check_finite(update)
        engine.refresh()
        self._evaluated = None
        return None

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Report also the tokens of the gradient; with `clip`, their members read them before."""
        read = 0 if isinstance(update, MeanUpdate) or update.skipped else self._read
        before = {} if self.section.clip is None else {"forward_tokens": read}
        return {**super().metrics(update), "backward_tokens": read, **before}

    def _rows(
        self, population: Population, batch: Sequence[Example], evaluation: Evaluation
    ) -> list[AdvantageRow]:
        """Return the completions with their advantages, except those with advantage 0."""
        advantages = self._advantages(population, evaluation)
        place_of = {example.index: place for place, example in enumerate(batch)}
        center = self.section.exploration == "temperature"

        def row(rollout: Rollout) -> AdvantageRow:
            place = place_of[rollout.example]
            member = None if center else population.members[rollout.member]
            advantage = float(advantages[rollout.member, place])
            return AdvantageRow(member, batch[place], rollout.completion, advantage)

        rows = [row(rollout) for rollout in evaluation.rollouts]
        return [row for row in rows if row.advantage]

    def _advantages(
        self, population: Population, evaluation: Evaluation
    ) -> Float[np.ndarray, "members examples"]:
        rewards = evaluation.rewards
        if self.section.advantage == "member":
            shaped = self.shape(evaluation, antithetic=population.antithetic)
            return np.where(np.isnan(rewards), 0.0, shaped[:, None])
        columns = [
            self.shape(replace(evaluation, rewards=rewards[:, [place]]), antithetic=False)
            for place in range(rewards.shape[1])
        ]
        return np.stack(columns, axis=1)


@contextmanager
def _tracked(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
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
