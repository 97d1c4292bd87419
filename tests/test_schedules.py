"""A schedule starts where it says, ends where it says, and knows the length of the run."""

import numpy as np
import pytest

from germline.config import CosineSchedule, LinearSchedule, PlateauSchedule
from germline.record import RunDirectory
from germline.run import resume
from germline.strategies.sigma_rules import PlateauSigma, value_at
from germline.types import GermlineError, Update
from tests.toy_runs import run

pytestmark = pytest.mark.usefixtures("graded_in_process")

LINEAR = LinearSchedule(start=0.1, end=0.3)
COSINE = CosineSchedule(start=0.3, end=0.1)


def values(schedule, generations):
    return [value_at(schedule, generation, generations) for generation in range(generations)]


def test_linear_goes_from_start_in_the_first_to_end_in_the_last_generation():
    assert values(0.3, 5) == [0.3] * 5
    found = values(LINEAR, 5)
    assert (found[0], found[-1]) == (0.1, 0.3)
    assert found == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3])


def test_cosine_is_the_equation_and_hits_both_ends():
    found = values(COSINE, 9)
    assert (found[0], found[-1]) == (0.3, 0.1)
    expected = 0.1 + 0.5 * (0.3 - 0.1) * (1 + np.cos(np.pi * np.arange(9) / 8))
    assert found == pytest.approx(expected)


def test_warmup_rises_to_the_start_and_the_cosine_has_the_rest_of_the_run():
    found = values(CosineSchedule(start=0.4, end=0.1, warmup=3), 12)
    assert found[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert found[3:] == values(CosineSchedule(start=0.4, end=0.1), 9)


def update_with(generation, fitness):
    state = {} if fitness is None else {"fitness": fitness}
    return Update(0, generation, 1.0, 0.1, (1.0,), strategy_state=state)


def fallen(fitness, **settings):
    """Return the values of all generations, the one after the last told included."""
    plateaus = PlateauSigma(PlateauSchedule(start=1.0, **settings))
    for generation, one in enumerate(fitness):
        plateaus.tell(update_with(generation, one))
    return [plateaus.at(generation) for generation in range(len(fitness) + 1)]


@pytest.mark.parametrize(
    ("fitness", "settings", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], {"patience": 1}, [1.0] * 5),  # it rises
        (
            [1.0, 0.5, 1.0, 2.0, 1.5, 2.0, 1.9, 1.0, 3.0],
            {"patience": 2, "factor": 0.5},
            # best: 1  -   -!   2    -    -!   -     -!    3
            [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125],
        ),
        ([0.0, 0.0, 0.0], {"patience": 1}, [1.0, 1.0, 0.5, 0.25]),  # an equal one is no rise
        ([0.0] * 5, {"patience": 1, "factor": 0.1, "min": 0.05}, [1.0, 1.0, 0.1] + [0.05] * 3),
        ([1.0, None, None, None], {"patience": 1}, [1.0] * 5),  # fitness was lost
    ],
)
def test_the_value_falls_after_patience_generations_without_a_rise(fitness, settings, expected):
    assert fallen(fitness, **settings) == expected


def test_a_value_whose_reasons_are_not_known_is_refused():
    plateaus = PlateauSigma(PlateauSchedule(start=1.0))
    plateaus.tell(update_with(0, 1.0))
    assert plateaus.at(1) == plateaus.at(0) == 1.0
    with pytest.raises(
        GermlineError, match=r"in generation 2 depends .* called for 1 of them\..*recall"
    ):
        plateaus.at(2)


COSINE_RATE = "strategy.learning_rate={kind: cosine, start: 0.4, end: 0.1}"
LINEAR_SIGMA = "strategy.sigma={start: 0.4, end: 0.1}"


@pytest.mark.parametrize(("kind", "schedule"), [("linear", LINEAR_SIGMA), ("cosine", COSINE_RATE)])
def test_a_schedule_is_not_bent_by_more_generations(kind, schedule, tmp_path):
    path = run(tmp_path / "run", schedule)
    with pytest.raises(GermlineError, match=f"generations=8 would change the {kind} schedule"):
        resume(path, ["generations=8"])


def test_the_sigmas_of_a_run_are_those_of_its_schedule(tmp_path):
    entries = RunDirectory.open(run(tmp_path / "run", LINEAR_SIGMA)).journal.read()
    assert [one.update.sigma for one in entries] == pytest.approx([0.4, 0.3, 0.2, 0.1])
