"""What adapts in `nes`: sigma by success or per tensor, a running baseline, noise played again."""

import math

import numpy as np
import pytest
import torch

from germline import noise
from germline.config import (
    Full,
    GrowSigmaOnZeroSignal,
    Lora,
    LowRank,
    Nes,
    RunningMeanBaseline,
    SuccessRateSigma,
)
from germline.config.schedules import scale_within
from germline.optimizers import Sgd
from germline.record import RunDirectory
from germline.shaping import utilities
from germline.strategies.adaptive_values import RunningMeanFitness
from germline.strategies.nes import NaturalEvolution
from germline.strategies.sigma_rules import SuccessSigma, ZeroSignalGrowth, success_rate
from germline.types import (
    Decoding,
    Population,
    SeedPerturbation,
    SigmaUpdate,
    Update,
)
from tests.evaluations import of_rewards
from tests.tiny_engines import drawn, engine, examples, population
from tests.toy_runs import run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

DECODING = Decoding(max_new_tokens=6)


def entries(folder):
    return [entry.update for entry in RunDirectory.open(folder).journal.read()]


def test_what_adapts_is_recorded(tmp_path):
    success = run(tmp_path / "success", "strategy.sigma={kind: success, start: 0.4, rate: 0.3}")
    rows = RunDirectory.open(success).generations()
    assert len({row["sigma"] for row in rows}) > 3
    assert [row["success"] for row in rows] == [
        one.strategy_state["success"] for one in entries(success)
    ]
    natural = "strategy.sigma={kind: natural, start: 0.3, rate: 20}"
    folder = run(tmp_path / "natural", natural, "space=full", "strategy.optimizer=adam")
    first, *_, last = RunDirectory.open(folder).generations()
    assert first["sigmas"] == {"min": 0.3, "max": 0.3}
    assert last["sigmas"]["min"] < last["sigma"] < last["sigmas"]["max"]


def update_with(generation, success):
    state = {} if success is None else {"success": success}
    return Update(0, generation, 0.1, 0.1, (1.0,), strategy_state=state)


def test_sigma_follows_the_equation_of_success():
    told = SuccessSigma(SuccessRateSigma(start=0.1, target=0.2, rate=0.5))
    for generation, share in enumerate([0.5, 0.0, None]):
        told.tell(update_with(generation, share))
    after = [0.1, 0.1 * math.exp(0.15), 0.1 * math.exp(0.05), 0.1 * math.exp(0.05)]
    assert [told.at(generation) for generation in range(4)] == pytest.approx(after, rel=1e-12)
    limited = SuccessSigma(SuccessRateSigma(start=0.1, rate=100, min=0.05, max=0.3))
    for generation, share in enumerate([1.0, 0.0]):
        limited.tell(update_with(generation, share))
    assert (limited.at(1), limited.at(2)) == (0.3, 0.05)


def test_success_is_the_share_above_the_center_and_ties_are_half():
    fitness = np.array([1.0, 2.0, np.nan, 1.5, 1.5 * (1 + 1e-9)])
    assert success_rate(fitness, 1.5) == (1 + 0.5 + 0.5) / 4
    assert success_rate(fitness, math.nan) is None
    assert success_rate(np.array([np.nan]), 1.0) is None


def test_growing_has_the_same_bits_everywhere():
    # A decimal exponential, rounded once: where libm rounds correctly it agrees to the bit.
    assert scale_within(1.0, 0.1, 0.0, 9.0) == 1.1051709180756477
    assert scale_within(2.0, -1.0, 0.0, 9.0) == 2 * 0.36787944117144233
    assert (scale_within(1.0, 5.0, 0.0, 9.0), scale_within(1.0, -5.0, 0.5, 9.0)) == (9.0, 0.5)


@pytest.mark.parametrize("section", [Full(), LowRank(rank=2), Lora()], ids=["full", "low", "lora"])
def test_every_tensor_follows_the_natural_gradient_of_its_own_noise(section):
    made = engine("toy", section, Sgd())
    before = {name: tensor.clone() for name, tensor in made.weights.tensors.items()}
    stretch = SigmaUpdate((0.5, -1.0, 2.0), 0.1, 10.0)
    made.apply(Update(3, 0, 0.02, 0.5, (0.0, 0.0, 0.0), sigma_update=stretch))
    for info in made.weights.searched:
        members = [SeedPerturbation(3, 0, direction, 1, 0.02) for direction in range(3)]
        squares = [(drawn(member, info, section) ** 2).mean() for member in members]
        step = sum(s * (one - 1) for s, one in zip(stretch.coefficients, squares, strict=True))
        found = made.weights.scales()[info.name]
        assert found == pytest.approx(math.exp(step), rel=1e-5)
        assert made.weights.units[info.name] == found
    assert all(torch.equal(before[name], one) for name, one in made.weights.tensors.items())
    made.apply(Update(3, 0, 0.1, 0.5, (0.0,), sigma_update=SigmaUpdate((1e4,), 0.5, 2.0)))
    assert set(made.weights.scales().values()) <= {0.5, 2.0}


@pytest.mark.parametrize("model", ["toy", "qwen2"])
@pytest.mark.parametrize("section", [Full(), LowRank(), Lora()], ids=["full", "low rank", "lora"])
def test_members_play_with_the_scales_of_their_tensors(model, section):
    """Scales of 2 with sigma 0.1 are sigma 0.2: the same texts, and the same step of theta."""
    scaled, plain = engine(model, section), engine(model, section)
    state = {f"{one.name}.scale": torch.tensor([2.0]) for one in scaled.weights.searched}
    scaled.weights.load_state({**scaled.weights.state(), **state})
    texts = [
        one.generate(population(4, sigma).members, examples(), DECODING)
        for one, sigma in ((scaled, 0.1), (plain, 0.2))
    ]
    assert texts[0] == texts[1]
    for one, rate in ((scaled, 0.25), (plain, 0.5)):
        one.apply(Update(3, 0, 0.1, rate, (1.0, -0.5)))
    for name, tensor in plain.weights.tensors.items():
        assert torch.equal(scaled.weights.tensors[name], tensor)


def test_the_digest_and_a_state_hold_the_scales():
    moved, fresh = (engine("toy", LowRank()) for _ in range(2))
    moved.apply(Update(3, 0, 0.1, 0.0, (0.0,), sigma_update=SigmaUpdate((1.0,), 0.1, 10.0)))
    assert moved.weights.digest() != fresh.weights.digest()
    fresh.weights.load_state(moved.weights.state())
    assert moved.weights.digest() == fresh.weights.digest()
    assert moved.weights.units == fresh.weights.units
    fresh.weights.load_state(engine("toy", LowRank()).weights.state())
    assert set(fresh.weights.scales().values()) == {1.0}


def test_directions_that_were_worth_more_count_with_half_the_rate_over_n():
    strategy = nes(population=4, sigma={"kind": "natural", "start": 0.1, "rate": 3, "max": 0.4})
    update = strategy.tell(strategy.ask(0), np.array([1.0, -0.5, 0.25, -0.75]))
    assert update.sigma_update == SigmaUpdate(
        (3 / 2 * 0.5 / 4, 3 / 2 * -0.5 / 4), 1e-6 / 0.1, 0.4 / 0.1
    )


def test_the_running_baseline_follows_its_equation():
    baseline = RunningMeanFitness(RunningMeanBaseline(decay=0.75))
    for generation, one in enumerate([None, 1.0, 3.0, None, 0.5]):
        baseline.tell(generation, one)
    assert [baseline.at(generation) for generation in range(6)] == [None, None, 1.0, 1.5, 1.5, 1.25]


def test_fitness_is_compared_with_the_baseline():
    shaping = settings("shaping=raw").shaping
    shaped = utilities(shaping, of_rewards([[1.0], [np.nan]]), antithetic=False, baseline=0.25)
    assert shaped.tolist() == [0.75, 0.0]
    strategy = nes(population=1, antithetic=False, baseline="running")
    utility = []
    for generation, reward in enumerate([1.0, 3.0, 1.0]):
        asked = strategy.ask(generation)
        evaluation = of_rewards([[reward]])
        shaped = utilities(shaping, evaluation, antithetic=False, baseline=asked.baseline)
        utility.append(float(shaped[0]))
        strategy.tell(asked, shaped, np.array([reward]))
    assert utility == pytest.approx([0.0, 2.0, 1.0 - 1.2])


def test_sigma_grows_without_signal():
    growth = ZeroSignalGrowth(GrowSigmaOnZeroSignal(factor=2.0, most=3.0))
    for generation, no_signal in enumerate([True, True, True, False, False, False]):
        growth.tell(generation, no_signal=no_signal)
    assert [growth.at(generation) for generation in range(7)] == [1, 2, 3, 3, 1.5, 1, 1]

    strategy = nes(population=2, sigma=0.1, zero_signal={"kind": "grow", "factor": 2})
    strategy.tell(strategy.ask(0), np.zeros(2))
    assert strategy.ask(1).seed_perturbations()[0].sigma == pytest.approx(0.2)
    assert strategy.tell(strategy.ask(1), np.array([1.0, -1.0])).sigma == pytest.approx(0.2)
    assert strategy.ask(2).seed_perturbations()[0].sigma == pytest.approx(0.1)


def nes(run_seed: int = 0, generations: int = 100, **settings: object) -> NaturalEvolution:
    chosen = {"sigma": 0.005, "learning_rate": 0.01} | settings
    return NaturalEvolution(Nes.model_validate(chosen), run_seed, generations)


@pytest.mark.parametrize(
    ("antithetic", "expected"),
    [
        (True, [(0, 1), (0, -1), (1, 1), (1, -1)]),
        (False, [(0, 1), (1, 1), (2, 1), (3, 1)]),
    ],
)
def test_members_come_in_pairs_of_a_direction_or_have_one_each(antithetic, expected):
    population = nes(population=4, antithetic=antithetic).ask(4)
    assert population.antithetic is antithetic
    assert [(one.direction, one.sign) for one in population.seed_perturbations()] == expected


@pytest.mark.parametrize(
    ("antithetic", "utility", "coefficients"),
    [
        (True, [1.0, -0.5, 0.25, -0.75], (1.5 / 4, 1.0 / 4)),
        (True, [0.7, 0.7, -0.7, -0.7], (0.0, 0.0)),
        (False, [1.0, 0.0, -1.0], (1 / 3, 0.0, -1 / 3)),
    ],
)
def test_a_coefficient_is_the_mean_of_the_worth_of_its_members(antithetic, utility, coefficients):
    strategy = nes(population=len(utility), antithetic=antithetic)
    assert strategy.tell(strategy.ask(0), np.array(utility)).coefficients == coefficients


def test_as_many_utilities_as_members_are_needed():
    strategy = nes(population=4)
    with pytest.raises(ValueError, match="shorter"):
        strategy.tell(strategy.ask(0), np.zeros(3))


FALLING = {"kind": "plateau", "start": 0.4, "factor": 0.5, "patience": 2}


def test_the_state_has_the_mean_fitness_of_members_that_have_one_where_sigma_needs_it():
    utility, fitness = np.zeros(4), np.array([1.0, np.nan, 2.0, np.nan])
    adaptive, constant = nes(population=4, sigma=FALLING), nes(population=4)
    missing = np.full(4, np.nan)
    assert adaptive.tell(adaptive.ask(0), utility, fitness).strategy_state == {"fitness": 1.5}
    assert adaptive.tell(adaptive.ask(1), utility, missing).strategy_state == {}
    assert constant.tell(constant.ask(0), utility, fitness).strategy_state == {}


def directions(population: Population) -> list[tuple[int, int, int]]:
    return [
        (one.run_seed, one.generation, one.direction) for one in population.seed_perturbations()
    ]


def test_mistake_5_no_perturbation_of_a_long_run_is_drawn_twice():
    """Members have an index, not one of a million random seeds, of which some would collide."""
    strategy = nes(generations=1000, population=30, antithetic=False)
    names = [name for generation in range(1000) for name in directions(strategy.ask(generation))]
    assert len(set(names)) == len(names) == 30_000


def first_noise(run_seed: int, generation: int = 0) -> bytes:
    member = nes(run_seed).ask(generation).seed_perturbations()[0]
    return noise.weight_noise(
        member.run_seed, member.generation, member.direction, "x", 64
    ).tobytes()


def test_mistake_6_neighboring_run_seeds_share_no_population():
    """`default_rng(seed + generation)` gives generation 1 of run 0 to generation 0 of run 1."""
    drawn = {first_noise(seed, generation) for seed in range(5) for generation in range(10)}
    assert len(drawn) == 50
