"""The benchmark of additions to the default search: what they change, and what they leave alone."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

import germline
from benchmarks.search_candidates import CANDIDATES, CandidateCurve, row, scored
from benchmarks.search_changes import (
    Average,
    CenterFleet,
    FiniteExamples,
    Growing,
    TrustRegion,
    shrunk,
)
from benchmarks.stability import Cell, Curve
from germline.config import AutoLearningRate, Nes, ZScore
from germline.run.build_parts import build_run_parts
from germline.shaping import utilities
from germline.signal_types import SignalPower
from germline.training import generations
from germline.types import Evaluation
from tests import toy_runs

pytestmark = pytest.mark.usefixtures("graded_in_process")

LONG = AutoLearningRate(least_step=0.0)
AUTO = ("strategy={kind: nes, population: 6}", "generations=3")


@pytest.mark.slow
@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_trains(name):
    config = toy_runs.settings(*AUTO, *CANDIDATES[name].settings)
    found = list(scored(config, CANDIDATES[name], 5))
    assert [done for done, *_ in found] == [0, 3]
    assert found[-1][1] >= 3 * 6 * config.batch_size
    assert all(math.isfinite(score) for _, _, score, _ in found)
    assert [len(fitness) for *_, fitness in found] == [0, 1]


def test_the_default_is_the_run_that_everybody_has(tmp_path):
    config = toy_runs.settings(*AUTO)
    training = germline.train(config, tmp_path / "run")
    toy_runs.finish(training)
    *_, (_, _, score, fitness) = scored(config, CANDIDATES["default"], config.held_out.examples)
    assert training.end is not None
    assert score == training.end.mean
    lines = (tmp_path / "run" / "generations.jsonl").read_text().splitlines()
    means = [json.loads(line)["fitness"]["mean"] for line in lines]
    assert fitness == [pytest.approx(sum(means) / len(means))]


class Limited(TrustRegion):
    """A center that is worse than before while it has gone farther than it may.

    Attributes:
        limit: how far it may go, in the largest change of a number.
    """

    limit = 0.0

    def __init__(self, inner):
        super().__init__(inner)
        self._start = self.copy()

    def _rewards(self):
        now = self.copy()
        gone = max(float((now[name] - self._start[name]).abs().max()) for name in now)
        return np.full(4, 0.0 if gone > self.limit else 1.0)

    def _is_worse(self, differences):
        return bool(differences.mean() < 0)


@pytest.mark.parametrize(("longest", "share"), [(2.0, 1.0), (0.6, 0.5), (0.3, 0.25), (0.1, 0.0)])
def test_a_step_that_makes_the_center_worse_is_halved_until_it_does_not(longest, share):
    with build_run_parts(toy_runs.settings(*AUTO)) as parts:
        plain = CenterFleet(parts.fleet)
        before = plain.copy()
        strategy = parts.strategy
        record = next(
            generations(strategy, parts.shape, plain, parts.batch, parts.decoding, range(1))
        )
        after = plain.copy()
        full = max(float((after[name] - before[name]).abs().max()) for name in after)
        plain.set(before)
        fleet = Limited(parts.fleet)
        fleet.limit = longest * full
        fleet.apply(record.update)
        for name, value in fleet.copy().items():
            assert torch.equal(value, torch.lerp(before[name], after[name], share))


def test_an_average_is_scored_and_leaves_the_center_alone():
    digests = []
    for kind in (CenterFleet, Average):
        with build_run_parts(toy_runs.settings(*AUTO)) as parts:
            fleet = kind(parts.fleet)
            run = (parts.strategy, parts.shape, fleet, parts.batch, parts.decoding, range(3))
            found = []
            for record in generations(*run):
                fleet.evaluate_center(parts.batch(0), parts.decoding)
                found.append(record.digest)
            digests.append(found)
    assert digests[0] == digests[1]


def test_a_population_grows_while_chance_separates_the_members_and_no_further():
    strategy = Growing(Nes(population=4, sigma=0.1), 0, 20)
    sizes = []
    for generation in range(20):
        population = strategy.ask(generation)
        sizes.append(len(population))
        fitness = np.arange(float(len(population)))
        strategy.tell(population, fitness - fitness.mean(), fitness, None, SignalPower(1.0, 1.0))
    assert sizes[0] == 4
    assert sizes[-1] == 16
    assert sizes == sorted(sizes)


def test_noise_that_the_other_training_examples_make_up_for_does_not_shorten_a_step():
    power, utilities_ = SignalPower(total=1.0, noise=1.0), np.array([1.0, -1.0])
    rates = []
    for share in (0.0, 0.25, 1.0):
        strategy = FiniteExamples(Nes(population=2, sigma=0.1, learning_rate=LONG), 0, 20)
        strategy.batch_share = share
        update = strategy.tell(strategy.ask(0), utilities_, None, None, power)
        rates.append(update.learning_rate)
    assert rates[0] == 0.0
    assert 0 < rates[1] == pytest.approx(0.25 * rates[2])


def test_pairs_whose_examples_disagree_count_less():
    def shape(evaluation, *, antithetic, baseline=None):
        return utilities(ZScore(), evaluation, antithetic=antithetic, baseline=baseline)

    sure = [1.0, 1.0, 1.0, 1.0]
    split = [2.5, -0.5, 2.5, -0.5]  # the same mean
    rewards = np.array([sure, [0.0] * 4, split, [0.0] * 4])
    found = shrunk(shape)(Evaluation(rewards, (), 0, 0.0), antithetic=True)
    assert found[0] > found[2] > 0
    assert found.sum() == pytest.approx(0)


def test_the_table_compares_a_candidate_with_the_default_at_the_same_seed():
    def curve(name, *scores):
        cell = Cell("countdown", "low_rank", name, 0, 1)
        fitness = [0.25, 0.75] if name == "fast" else []
        return CandidateCurve(cell, [0, 5, 10], [0, 100, 200], list(scores), 0.0, 1, fitness)

    base = [curve("default", 0.0, 0.5, 1.0)]
    assert row("countdown", "fast", [curve("fast", 0.0, 0.9, 0.8)], base).endswith(
        "| 0.9 | 0.8 | 0.1 | 0.5 | 1.8 [1.8, 1.8] |"
    )
    flat = [curve("default", 0.0, 0.0, 0.0)]
    assert row("countdown", "flat", flat, flat).endswith("| 0 | 0 | 0 | - | - |")


def test_a_curve_that_was_written_is_read_for_the_table(tmp_path):
    cell = Cell("countdown", "low_rank", "default", 0, 1)
    curve = Curve(cell, [0, 5], [0, 640], [0.25, 0.5], 1.0)
    path = tmp_path / "curve.json"
    assert Curve.read(cell, path) is None
    path.write_text(json.dumps(asdict(curve)))
    assert Curve.read(cell, path) == curve
