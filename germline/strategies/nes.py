"""Natural evolution strategy with Gaussian noise: the score-function estimate of grad E[R].

Member i has the weights theta + s_i sigma eps_i. With utilities u_i,

    (1)  g     = 1 / (N sigma) * sum_i u_i s_i eps_i          estimate of the gradient
    (2)  theta = theta + step(learning_rate * sigma * g)      the field's convention: the learning
                                                              rate includes 1/sigma

so an update is one coefficient per direction, c_k = 1/N * sum of u_i s_i over the members of
direction k: with plain ascent theta changes by learning_rate * sum_k c_k eps_k. Source: Salimans et
al. 2017 (arXiv 1703.03864); the convention and the paper's settings (sigma 1e-3, learning_rate
5e-4, N 30) are those of Qiu et al. 2025 (arXiv 2509.24372).

Beyond the paper: by default sigma is calibrated to a KL divergence (`strategies.calibrated_sigma`),
and the learning rate follows the measured signal (`strategies.adaptive_values`): the
coefficients then give the direction of a step and the learning rate its length. Off by default:
other adaptations of sigma (`strategies.sigma_rules`), and a running mean of earlier fitness as the
baseline.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from germline.config import (
    AutoLearningRate,
    AutoSigma,
    GrowSigmaOnZeroSignal,
    Nes,
    RunningMeanBaseline,
    Scheduled,
    SkipZeroSignal,
)
from germline.protocols import Strategy
from germline.strategies.adaptive_values import RunningMeanFitness, SignalLearningRate
from germline.strategies.sigma_rules import (
    ZeroSignalGrowth,
    make_sigma_rule,
    success_rate,
    value_at,
)
from germline.types import (
    GermlineError,
    MeanUpdate,
    Perturbation,
    Population,
    SeedPerturbation,
    SignalPower,
    Update,
)


class NaturalEvolution(Strategy):
    """Members and updates follow from the run seed, the generation and the updates so far.

    The updates so far matter only where sigma, the learning rate or the baseline adapts. The values
    they adapt to are in the strategy state of each update, from which `recall` restores them.
    """

    def __init__(self, config: Nes, run_seed: int, generations: int) -> None:
        self.config = config
        self.run_seed = run_seed
        self.generations = generations
        self.sigma = make_sigma_rule(config, generations)
        grows, running, rate = config.zero_signal, config.baseline, config.learning_rate
        self.growth = ZeroSignalGrowth(grows) if isinstance(grows, GrowSigmaOnZeroSignal) else None
        self.baseline = (
            RunningMeanFitness(running) if isinstance(running, RunningMeanBaseline) else None
        )
        self.signal_rate = SignalLearningRate(rate) if isinstance(rate, AutoLearningRate) else None

    @classmethod
    def from_config(
        cls, config: Nes, *, run_seed: int, generations: int, dimension: int
    ) -> "NaturalEvolution":
        """Construct it from its section; it searches any number of dimensions."""
        return cls(config, run_seed, generations)

    def calibrate(
        self, generation: int, divergence: Callable[[Sequence[Perturbation]], float]
    ) -> None:
        """Try sigmas with a few pairs of the generation's own directions, where sigma is `auto`.

        In a pair the linear part of log-probabilities cancels.
        """

        def at(sigma: float) -> float:
            assert isinstance(self.config.sigma, AutoSigma)  # no other sigma is calibrated
            return divergence(
                [
                    SeedPerturbation(self.run_seed, generation, direction, sign, sigma)
                    for direction in range(self.config.sigma.tried_pairs)
                    for sign in (1, -1)
                ]
            )

        self.sigma.calibrate(generation, at)

    def ask(self, generation: int) -> Population:
        """Return N members: directions 0..N-1, or pairs (+, -) of directions 0..N/2-1."""
        config = self.config
        sigma = self.sigma.at(generation) * (self.growth.at(generation) if self.growth else 1.0)
        per_direction = (1, -1) if config.antithetic else (1,)
        members = tuple(
            SeedPerturbation(self.run_seed, generation, direction, sign, sigma)
            for direction in range(config.population // len(per_direction))
            for sign in per_direction
        )
        return Population(
            generation,
            members,
            config.antithetic,
            evaluate_center=self.sigma.wants_success,
            baseline=self.baseline.at(generation) if self.baseline else None,
        )

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update:
        """Sum utilities into one coefficient per direction: equation (1) times sigma."""
        members = population.seed_perturbations()
        coefficients: dict[int, float] = {}
        shares: dict[int, float] = {}
        for member, utility in zip(members, utilities, strict=True):
            share = float(utility) / len(members)
            shares[member.direction] = shares.get(member.direction, 0.0) + share
            share = float(utility) * member.sign / len(members)
            coefficients[member.direction] = coefficients.get(member.direction, 0.0) + share
        generation = population.generation
        sigma, rate = members[0].sigma, cast(Scheduled, self.config.learning_rate)
        in_order = tuple(coefficients[direction] for direction in sorted(coefficients))
        update = Update(
            run_seed=self.run_seed,
            generation=generation,
            sigma=sigma,
            learning_rate=(
                self.signal_rate.of(generation, sigma, in_order, power) * self.sigma.lengthening
                if self.signal_rate
                else value_at(rate, generation, self.generations)
            ),
            coefficients=in_order,
            sigma_update=self.sigma.update_of([shares[direction] for direction in sorted(shares)]),
            strategy_state=self._state(fitness, center, power),
        )
        if update.has_no_signal and isinstance(self.config.zero_signal, SkipZeroSignal):
            update = replace(update, skipped=True)
        self._follow(update)
        return update

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Restore what adapts from the updates of a stopped run."""
        for update in updates:
            if isinstance(update, Update):
                self._follow(update)
        return updates

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Report the success rate, where sigma adapts to it."""
        return {k: v for k, v in update.strategy_state.items() if k == "success"}

    def _state(
        self,
        fitness: Float[np.ndarray, "members"] | None,
        center: float | None,
        power: SignalPower | None,
    ) -> dict[str, Any]:
        """Return the values that sigma, learning rate and baseline adapt to, as far as they do."""
        state: dict[str, Any] = dict(self.sigma.state())
        if self.sigma.wants_fitness or self.baseline:
            known = [value for value in self._given(fitness).tolist() if not math.isnan(value)]
            state["fitness"] = math.fsum(known) / len(known) if known else None
        if self.sigma.wants_success:
            state["success"] = success_rate(self._given(fitness), center)
        if power and (self.signal_rate or self.sigma.wants_power):
            state["power"] = asdict(power)
        return {name: value for name, value in state.items() if value is not None}

    def _follow(self, update: Update) -> None:
        state = update.strategy_state
        self.sigma.tell(update)
        if self.growth:
            self.growth.tell(update.generation, no_signal=update.has_no_signal)
        if self.signal_rate:
            power = SignalPower(**state["power"]) if "power" in state else None
            self.signal_rate.tell(update.sigma, power)
        if self.baseline:
            self.baseline.tell(update.generation, state.get("fitness"))

    def _given(self, fitness: Float[np.ndarray, "members"] | None) -> Float[np.ndarray, "members"]:
        if fitness is None:
            setting = "baseline" if self.baseline else "sigma"
            kind = getattr(getattr(self.config, setting), "kind", "")
            raise GermlineError(
                f"strategy.{setting}.kind={kind} needs the fitness of the members: "
                "strategy.tell(population, utilities, fitness)"
            )
        return fitness
