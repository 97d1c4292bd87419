"""Conformance tests of strategies: inherit them, and define how your strategy is made."""

import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from germline.config import ShapingConfig, ZScore
from germline.protocols import Strategy
from germline.record import Journal
from germline.testing.vector_fleet import ObjectiveFunction, VectorFleet, sphere
from germline.types import MeanUpdate, Population, Update

STOPS = (0, 1, 4)
"""Generations after which a strategy is stopped and resumed."""

AFTER = 3
"""Generations it then runs for."""


class StrategyConformance:
    """Tests of the contract of a strategy, for pytest to collect in a class of yours.

        class TestMine(StrategyConformance):
            def make(self, run_seed, generations, dimension):
                return Mine(run_seed, generations)

    Attributes:
        generations: length of the climbs.
        leaves: (problem, largest allowed share of the starting loss at the end), by name.
        shaping: how rewards become utilities.
    """

    generations: int = 60
    leaves: Mapping[str, tuple[ObjectiveFunction, float]] = MappingProxyType(
        {"sphere": (sphere(), 0.05)}
    )
    shaping: ShapingConfig = ZScore()

    def make(self, run_seed: int, generations: int, dimension: int) -> Strategy:
        """Return a new strategy; override this."""
        raise NotImplementedError

    def test_it_keeps_the_contract(self) -> None:
        assert isinstance(self._made(), Strategy)

    def test_it_climbs(self) -> None:
        for name, (problem, share) in self.leaves.items():
            fleet = VectorFleet(problem)
            # Sampling noise of a generation that the climb does not use.
            before = fleet.fitness(self.generations)
            self._climb(fleet, self._made(dimension=problem.dimension), range(self.generations))
            after = fleet.fitness(self.generations)
            assert after > share * before, f"{name}: from {before:.3g} to {after:.3g} only"

    def test_asking_twice_asks_for_the_same(self) -> None:
        strategy = self._made()
        self._climb(VectorFleet(sphere()), strategy, range(2))
        assert strategy.ask(2) == strategy.ask(2)

    def test_members_follow_from_the_run_seed_and_the_utilities(self) -> None:
        populations = [self._population_after(seed, generations=2) for seed in (0, 0, 1)]
        assert populations[0] == populations[1]
        assert populations[0].members != populations[2].members

    def test_the_members_of_a_generation_differ(self) -> None:
        for generation in range(2):
            population = self._population_after(0, generation)
            assert population.generation == generation
            assert len(set(population.members)) == len(population.members) > 0

    def test_a_population_travels_between_processes(self) -> None:
        asked = self._made().ask(0)
        assert pickle.loads(pickle.dumps(asked)) == asked

    def test_recalling_a_journal_and_going_on_equals_never_stopping(self) -> None:
        for stop in STOPS:
            whole, stopped = VectorFleet(sphere()), VectorFleet(sphere())
            self._climb(whole, self._made(), range(stop + AFTER))
            updates = self._climb(stopped, self._made(), range(stop))
            strategy = self._made()
            strategy.recall(_read_back(updates))
            self._climb(stopped, strategy, range(stop, stop + AFTER))
            assert stopped.digest() == whole.digest(), f"stopped after {stop} generations"

    def test_without_signal_theta_stays(self) -> None:
        fleet, strategy = VectorFleet(sphere()), self._made()
        before, asked = fleet.theta, strategy.ask(0)
        nothing = np.zeros(len(asked))
        center = (0.0,) if asked.evaluate_center else ()
        fleet.apply(strategy.tell(asked, nothing, nothing, *center))
        assert np.array_equal(fleet.theta, before)

    def _made(self, run_seed: int = 0, dimension: int = 10) -> Strategy:
        return self.make(run_seed, self.generations, dimension)

    def _population_after(self, run_seed: int, generations: int) -> Population:
        strategy = self._made(run_seed)
        self._climb(VectorFleet(sphere()), strategy, range(generations))
        return strategy.ask(generations)

    def _climb(
        self, fleet: VectorFleet, strategy: Strategy, span: range
    ) -> Sequence[Update | MeanUpdate]:
        return [record.update for record in fleet.run_generations(strategy, span, self.shaping)]


def _read_back(updates: Sequence[Update | MeanUpdate]) -> list[Update | MeanUpdate]:
    """Write updates to a journal and read them again: all that a resumed run has."""
    with tempfile.TemporaryDirectory(prefix="germline-testing-") as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        for update in updates:
            journal.append(update, "0" * 64)
        return [entry.update for entry in journal.read()] if updates else []
