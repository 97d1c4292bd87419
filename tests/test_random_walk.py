"""How far a random walk of the updates carries the weights: against weights that really walked."""

import math

import numpy as np
import pytest
import torch

import germline
from germline.config import Adam, Nes, Sgd
from germline.record import RunDirectory
from germline.record.ancestry import inherited_walk
from germline.run.build_parts import make_engine
from germline.run.weights import load_engine
from germline.shaping import utilities
from germline.signal_metrics import walked
from germline.strategies import make_strategy
from germline.types import Evaluation, MeanUpdate, Update
from tests.toy_runs import finish, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")


def expected_walk(learning_rate: float, population: int, generations: int) -> float:
    """Return the final distance of plain ascent along utilities of standard deviation 1.

    Coefficients are 1/N times sums of utilities, so |c| = 1 / sqrt(N). Antithetic pairs have the
    same length: half as many directions, each the sum of two members.
    """
    return learning_rate * math.sqrt(generations / population)


def update(generation, coefficients, rate=0.5, **more):
    return Update(0, generation, 0.1, rate, tuple(coefficients), **more)


def test_steps_along_new_directions_add_up_as_squares():
    updates = [update(0, [3.0, 4.0]), update(1, [0.0, 12.0]), update(2, [0.0, 0.0])]
    assert walked(updates) == pytest.approx([2.5, 6.5, 6.5])


def test_directions_that_are_played_again_add_up_as_they_are():
    updates = [update(0, [3.0, 4.0]), update(1, [3.0, 4.0], noise_generation=0)]
    assert walked(updates) == pytest.approx([2.5, 5.0])
    back = [updates[0], update(1, [-3.0, -4.0], noise_generation=0), update(2, [1.0])]
    assert walked(back) == pytest.approx([2.5, 0.0, 0.5])


def test_what_was_skipped_is_no_step_and_momentum_counts_for_all_it_will_push():
    updates = [update(0, [1.0]), update(1, [1.0], skipped=True)]
    assert walked(updates, Sgd(momentum=0.75)) == pytest.approx([2.0, 2.0])


def test_adam_steps_as_far_as_its_rate_however_large_the_coefficients():
    updates = [update(g, [1e-3, -1e-3], rate=0.1) for g in range(4)]
    assert walked(updates, Adam())[-1] == pytest.approx(0.2)


def test_what_is_no_sum_of_directions_has_no_walk():
    assert walked([update(0, [1.0]), MeanUpdate(1, 0.1, (0.5, -0.5))]) == [0.5, None]
    assert walked([update(0, [1.0], backpropagated=True)]) == [None]


def test_a_walk_goes_on_from_where_it_was():
    assert walked([update(0, [8.0])], start=3.0) == [5.0]


@pytest.mark.parametrize("antithetic", [True, False])
def test_z_scores_of_noise_walk_as_far_as_the_formula_says(antithetic):
    config = Nes(population=32, antithetic=antithetic, sigma=0.01, learning_rate=0.02)
    strategy = make_strategy(config, run_seed=0, generations=200, dimension=10)
    random = np.random.default_rng(0)
    section = settings().shaping
    updates = []
    for generation in range(200):
        rewards = random.normal(size=(32, 1))
        shaped = utilities(section, Evaluation(rewards, (), 0, 0.0), antithetic=antithetic)
        updates.append(strategy.tell(strategy.ask(generation), shaped, rewards[:, 0]))
    assert walked(updates)[-1] == pytest.approx(expected_walk(0.02, 32, 200), rel=0.05)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(("strategy.noise_reuse=4",), marks=pytest.mark.slow),
        ("space=low_rank", "shaping=centered_ranks"),
        pytest.param(
            ("strategy.optimizer=adam", "strategy.learning_rate=0.01"), marks=pytest.mark.slow
        ),
    ],
    ids=lambda one: one[0],
)
def test_weights_without_a_signal_are_as_far_from_the_start_as_the_walk(variant, tmp_path):
    noise = ("generations=30", "space=full", "strategy.population=4", "held_out.examples=1")
    path = run(tmp_path / "run", *noise, *variant)
    directory = RunDirectory.open(path)
    start = make_engine(directory.config).weights.state()
    end = load_engine(directory).weights.state()
    moved = torch.cat([(end[name] - one).flatten() for name, one in start.items()])
    updates = [entry.update for entry in directory.journal.read()]
    walk = walked(updates, directory.config.optimizer)[-1]
    searched = moved[moved != 0]
    assert float(searched.square().mean().sqrt()) == pytest.approx(walk, rel=0.25)


def test_every_generation_says_how_far_the_walk_is_and_a_resumed_run_goes_on(tmp_path):
    path = run(tmp_path / "run", "generations=2")
    finish(germline.resume(path, ["generations=4"]))
    directory = RunDirectory.open(path)
    shown = [row["signals"]["walk"] for row in directory.generations()]
    updates = [entry.update for entry in directory.journal.read()]
    assert shown == walked(updates)
    assert shown == sorted(shown)
    assert shown[0] > 0


def test_a_fork_goes_on_from_the_walk_of_its_ancestors(tmp_path):
    parent = run(tmp_path / "run", "generations=2")
    child = finish(germline.fork(parent, 1, ["generations=1"], tmp_path / "child"))
    directory = RunDirectory.open(child)
    before = RunDirectory.open(parent).generations()[-1]["signals"]["walk"]
    assert inherited_walk(directory.ancestors, "constant") == before
    assert directory.generations()[0]["signals"]["walk"] > before
    assert inherited_walk(directory.ancestors, "std") == 0


def test_the_page_draws_the_walk_against_the_edge_where_it_is_known(tmp_path):
    path = run(tmp_path / "run", "record.edge=0.123")
    page = germline.write_report(path).read_text()
    assert "walk of the updates from " in page
    assert "edge from 0.123 to 0.123" in page
    unknown = germline.write_report(run(tmp_path / "other")).read_text()
    assert "walk of the updates from " in unknown
    assert "edge from " not in unknown
