"""How far a random walk of the updates carries the weights: against weights that really walked."""

import math

import pytest
import torch

import germline
from germline.config import Adam, Sgd
from germline.record import RunDirectory
from germline.record.journal import inherited_walk
from germline.run.build_parts import make_engine
from germline.run.weights import load_engine
from germline.signal_metrics import walked
from germline.types import MeanUpdate, Update
from tests.toy_runs import finish, run

pytestmark = pytest.mark.usefixtures("graded_in_process")


def update(generation, coefficients, rate=0.5, **more):
    return Update(0, generation, 0.1, rate, tuple(coefficients), **more)


FIRST = update(0, [3.0, 4.0])
MOMENTUM, ADAM = Sgd(momentum=0.75), Adam()
ADAM_WALK = [0.1 * math.sqrt(steps) for steps in range(1, 5)]


@pytest.mark.parametrize(
    ("updates", "optimizer", "expected"),
    [
        ([FIRST, update(1, [0.0, 12.0]), update(2, [0.0, 0.0])], Sgd(), [2.5, 6.5, 6.5]),
        ([update(0, [1.0]), update(1, [1.0], skipped=True)], MOMENTUM, [2.0, 2.0]),
        ([update(g, [1e-3, -1e-3], rate=0.1) for g in range(4)], ADAM, ADAM_WALK),
        ([update(0, [1.0]), MeanUpdate(1, 0.1, (0.5, -0.5))], Sgd(), [0.5, None]),
        ([update(0, [1.0], backpropagated=True)], Sgd(), [None]),
    ],
    ids=["new", "skipped, momentum", "adam", "no directions", "no sum"],
)
def test_steps_along_new_directions_add_up_as_squares(updates, optimizer, expected):
    assert walked(updates, optimizer) == pytest.approx(expected)


def test_a_walk_goes_on_from_where_it_was():
    assert walked([update(0, [8.0])], start=3.0) == [5.0]


@pytest.mark.parametrize(
    "variant",
    [
        ("space=low_rank", "shaping=centered_ranks"),
        ("strategy.optimizer=adam", "strategy.learning_rate=0.01"),
    ],
    ids=["low_rank", "adam"],
)
def test_weights_without_a_signal_are_as_far_from_the_start_as_the_walk(variant, tmp_path):
    noise = ("generations=20", "space=full", "strategy.population=4", "held_out.examples=1")
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
