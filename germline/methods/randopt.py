"""RandOpt: keep the best of many random members around the base model and let them vote.

Gan and Isola 2026 (Neural Thickets, arXiv 2603.12228): around a well-trained model, weights that
are better at a task are so dense that N random ones need no search. Members are seeds, as always:

    (1)  member i has the weights theta_0 + s_i sigma_i eps_i; F_i is its mean training reward
    (2)  kept are the K members of the largest F_i; of equal ones, those asked first
    (3)  the answer is the one that most of the kept members give

theta never changes: every update is skipped, and the digest stays that of the base model. A journal
line holds the fitness of its members, from which a resumed run keeps the same ones.

Two completions give the same answer where the task says so (`protocols.VotableTask`), and otherwise
where their plain texts agree (`normalize_answer`). A completion without an answer abstains. Of
answers with equally many votes, that of the fittest member wins.

Deviations: directions use the sigmas of a list in turn, not at random; all generations use the
training examples of generation 0, so that their members can be compared; and what is scored is the
whole completion of the fittest member that gave the winning answer, so a vote works with any
reward. Pairs of +noise and -noise are drawn where `strategy.antithetic` asks for
them; the paper's members are independent.

Limits: K members answer at K times the cost of one. With task.temperature above 0, generations have
different sampling noise, so the fitness of members of different generations differs by it as well.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from germline.evaluation import mean_and_error
from germline.fleet import Fleet
from germline.graders.builtin_rewards import normalize_answer
from germline.methods.method import Evaluated, Learned, Method
from germline.protocols import Task, VotableTask
from germline.shaping import fitness
from germline.signal_metrics import signal_power
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    Rollout,
    SeedPerturbation,
    Update,
)


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """A member that votes.

    Attributes:
        score: mean metric of the member alone on the examples of the last vote; None before one.
    """

    member: SeedPerturbation
    fitness: float
    score: float | None = None


STATE = "told"
"""Name of the members' fitness in the strategy state; it must not change, as journals hold it."""


def recorded_fitness(update: Update | MeanUpdate) -> list[float]:
    """Return the fitness of each member as the journal has it; NaN: missing."""
    return [math.nan if f is None else f for f in update.strategy_state[STATE]]


class RandOptMethod(Method):
    """Members vote for the center: the result of a run is its ensemble.

    Attributes:
        kept: the fittest members so far, best first.
    """

    kept: tuple[EnsembleMember, ...] = ()

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Offer the members of a stopped run to the ensemble again."""
        for update in updates:
            if isinstance(update, Update):
                self.strategy.recall([update])
                members = self.ask(update.generation).seed_perturbations()
                self._keep_fittest(members, recorded_fitness(update))
        return updates

    def batch_generation(self, generation: int) -> int:
        """Return 0: the fitness of members of different generations is compared."""
        return 0

    def ask(self, generation: int) -> Population:
        """Return the members of a generation; directions use the sigmas of the method in turn."""
        population = super().ask(generation)
        sigmas = self.section.sigmas
        if sigmas is None:
            return population
        members = population.seed_perturbations()
        directions = 1 + max(member.direction for member in members)
        first = generation * directions
        turned = tuple(
            replace(member, sigma=sigmas[(first + member.direction) % len(sigmas)])
            for member in members
        )
        return replace(population, members=turned)

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Offer the members to the ensemble; the update leaves theta unchanged."""
        fit = fitness(evaluated.members.rewards)
        members = population.seed_perturbations()
        self._keep_fittest(members, fit.tolist())
        update = Update(
            run_seed=members[0].run_seed,
            generation=population.generation,
            sigma=_middle([member.sigma for member in members]),
            learning_rate=0.0,
            coefficients=(),
            skipped=True,
            strategy_state={STATE: [None if math.isnan(f) else f for f in fit.tolist()]},
        )
        self.strategy.recall([update])  # its sigma may be calibrated
        shaped = self.shape(
            evaluated.members, antithetic=population.antithetic, baseline=population.baseline
        )
        power = signal_power(population, evaluated.members, self.shape)
        return Learned(fitness=fit, mean_rewards=fit, utilities=shaped, update=update, power=power)

    def is_zero_signal(self, update: Update | MeanUpdate) -> bool:
        """Say whether all members of a generation have the same fitness."""
        return len({f for f in recorded_fitness(update) if not math.isnan(f)}) < 2

    def voting_members(self) -> Sequence[SeedPerturbation]:
        """Return the kept members, best first."""
        return [one.member for one in self.kept]

    def ensemble_rows(self) -> Sequence[dict[str, Any]]:
        """Return the kept members with their fitness and score, best first."""
        return [
            asdict(one.member) | {"fitness": one.fitness, "score": one.score} for one in self.kept
        ]

    def result_update(self) -> Update:
        """Return the update that makes the best member the center, at learning rate 1."""
        if not self.kept:
            raise GermlineError(
                "method.kind=randopt: this run has kept no member yet, so it has no weights of its "
                "own: resume it"
            )
        member = self.kept[0].member
        return Update(
            run_seed=member.run_seed,
            generation=member.generation,
            sigma=member.sigma,
            learning_rate=1.0,
            coefficients=(0.0,) * member.direction + (member.sign * member.sigma,),
        )

    def evaluate_center(
        self, fleet: Fleet, examples: Sequence[Example], decoding: Decoding, samples: int = 1
    ) -> Evaluation:
        """Evaluate every kept member, and return the completions that the votes elect."""
        if not self.kept:
            return super().evaluate_center(fleet, examples, decoding, samples)
        if samples > 1:
            raise GermlineError(
                f"samples={samples}: an ensemble gives one answer per example, that of its vote: "
                "leave out --samples"
            )
        by_member, parts = self._evaluate_kept(fleet, examples, decoding)
        self.kept = tuple(
            replace(one, score=self._score(rollouts))
            for one, rollouts in zip(self.kept, by_member, strict=True)
        )
        assert self.task is not None
        answer = answer_function(self.task)
        won = tuple(
            replace(majority_rollout(ballots, answer, example), member=0)
            for ballots, example in zip(zip(*by_member, strict=True), examples, strict=True)
        )
        rewards = np.array([[rollout.grade.reward for rollout in won]])
        tokens = sum(part.tokens for part in parts)
        return Evaluation(rewards, won, tokens, sum(part.decode_seconds for part in parts))

    def _keep_fittest(self, members: Sequence[SeedPerturbation], fitness: Sequence[float]) -> None:
        """Keep the fittest of the old and new members: equation (2); members of NaN are dropped."""
        known = [
            EnsembleMember(member, float(f))
            for member, f in zip(members, fitness, strict=True)
            if not math.isnan(f)
        ]
        # A stable sort: of equally fit members, those asked first stay in front.
        ranked = sorted([*self.kept, *known], key=lambda one: -one.fitness)
        self.kept = tuple(ranked[: self.section.ensemble_size])

    def _evaluate_kept(
        self, fleet: Fleet, examples: Sequence[Example], decoding: Decoding
    ) -> tuple[list[list[Rollout]], list[Evaluation]]:
        """Return the rollouts of each kept member, and the evaluations that they are from.

        Members are evaluated one generation after another: engines draw one at a time.
        """
        kept = self.voting_members()
        by_member: list[list[Rollout]] = [[] for _ in kept]
        parts = []
        for generation in dict.fromkeys(member.generation for member in kept):
            places = [place for place, one in enumerate(kept) if one.generation == generation]
            members = tuple(kept[place] for place in places)
            population = Population(generation, members, antithetic=False, needs_every_member=True)
            parts.append(fleet.evaluate(population, examples, decoding))
            for rollout in parts[-1].rollouts:
                by_member[places[rollout.member]].append(rollout)
        return by_member, parts

    def _score(self, rollouts: Sequence[Rollout]) -> float:
        assert self.task is not None
        parts = [rollout.grade.parts.get(self.task.metric) for rollout in rollouts]
        return mean_and_error([part for part in parts if part is not None])[0]


def _middle(sigmas: Sequence[float]) -> float:
    """Return the sigma that all members share, or the geometric mean of theirs."""
    return sigmas[0] if len({*sigmas}) == 1 else float(np.exp(np.log(sigmas).mean()))


Answer = Callable[[str, Example], str | None]
"""(completion text, example) -> the answer that is voted on; None abstains."""


def answer_function(task: Task) -> Answer:
    """Return the function that extracts the answer from a completion of a task."""
    return (
        task.answer_of
        if isinstance(task, VotableTask)
        else lambda text, example: normalize_answer(text)
    )


def majority_rollout(rollouts: Sequence[Rollout], answer: Answer, example: Example) -> Rollout:
    """Return the rollout of the best member among those that gave the majority's answer.

    The rollouts are those of the voting members, best member first; those whose reward is missing
    have no vote, if any is known.
    """
    rollouts = [one for one in rollouts if not math.isnan(one.grade.reward)] or rollouts
    votes = [answer(rollout.completion.text, example) for rollout in rollouts]
    # Counter keeps the order of first votes, and `most_common` is stable: best member first.
    ranked = Counter(vote for vote in votes if vote is not None).most_common(1)
    return rollouts[votes.index(ranked[0][0])] if ranked else rollouts[0]
