"""One engine in this process as a fleet: populations, the center, updates."""

import numpy as np
import pytest

from germline.config import MicrobatchSettings
from germline.fleet import LocalFleet
from germline.protocols import Fleet
from germline.run.build_parts import make_decoding, make_engine
from germline.strategies import make_strategy
from germline.tasks import make_task
from tests.toy_runs import GradedHere, settings
from tests.wrappers import EngineWrapper

CONFIG = settings()
TASK = make_task(CONFIG.task)
EXAMPLES = TASK.examples("train")[:7]
DECODING = make_decoding(CONFIG, TASK)
STRATEGY = make_strategy(CONFIG.strategy, run_seed=0, generations=9)


class Watched(EngineWrapper):
    """A toy engine that remembers the shape of every cell it was given."""

    def __init__(self):
        super().__init__(make_engine(CONFIG))
        self.shapes = []

    def generate(self, members, examples, decoding):
        self.shapes.append((len(members), len(examples)))
        return self.inner.generate(members, examples, decoding)


@pytest.fixture
def engine():
    return Watched()


@pytest.fixture
def fleet(engine):
    return LocalFleet(engine, GradedHere(TASK), MicrobatchSettings(members=4, examples=3))


def test_a_population_is_evaluated_in_cells_of_the_size_in_the_config(fleet, engine):
    assert isinstance(fleet, Fleet)
    evaluation = fleet.evaluate(STRATEGY.ask(0), EXAMPLES, DECODING)
    assert (evaluation.rewards.shape, len(evaluation.rollouts)) == ((6, 7), 42)
    assert engine.shapes == [(4, 3), (4, 3), (4, 1), (2, 3), (2, 3), (2, 1)]


def test_the_center_plays_as_one_member_with_as_many_rows_in_a_cell(fleet, engine):
    evaluation = fleet.evaluate_center(TASK.examples("train")[:20], DECODING)
    assert evaluation.rewards.shape == (1, 20)
    assert engine.shapes == [(1, 12), (1, 8)]


def test_an_update_moves_the_engine_and_an_evaluation_leaves_no_trace(fleet):
    alone = make_engine(CONFIG)
    fleet.evaluate(STRATEGY.ask(0), EXAMPLES, DECODING)
    fleet.evaluate_center(EXAMPLES, DECODING)
    assert fleet.digest() == (before := alone.weights.digest())
    update = STRATEGY.tell(STRATEGY.ask(0), np.array([1.0, -1.0, 0.5, -0.5, 0.0, 0.0]))
    fleet.apply(update)
    alone.apply(update)
    assert fleet.digest() == alone.weights.digest() != before
