"""The time of a run follows from two short trainings."""

import pytest

from germline.config import load_config
from germline.run import measured_time
from germline.run.measured_time import MeasuredTime, measure_time

CONFIG = load_config(
    {"model": "nano", "task": "conciseness", "batch_size": 8, "generations": 10},
    ["strategy.population=16", "held_out.every=5", "held_out.examples=20"],
)


def test_a_run_takes_its_start_its_generations_and_its_held_out_scores():
    measured = MeasuredTime(start_s=5.0, generation_s=0.5, completion_s=0.01)
    assert measured.run_s(CONFIG) == pytest.approx(5 + 10 * (0.5 + 128 * 0.01) + 3 * 20 * 0.01)


@pytest.mark.parametrize(
    ("small_s", "larger_s", "expected"),
    [(1.0, 5.48, (0.36, 0.01)), (6.4, 0.0, (0.0, 0.1)), (1.0, 0.5, (1.0, 0.0))],
    ids=["quick", "slow: only one training", "noise of the clock"],
)
def test_two_sizes_tell_generations_and_completions_apart(monkeypatch, small_s, larger_s, expected):
    times = {measured_time.SMALL: (3.0, small_s), measured_time.LARGER: (4.0, larger_s)}
    monkeypatch.setattr(measured_time, "_trained", lambda _, *size: times[size])
    found = measure_time(CONFIG)
    assert (found.start_s, found.generation_s, found.completion_s) == pytest.approx(
        (3.0, *expected)
    )


@pytest.mark.slow
def test_a_short_training_is_measured():
    found = measure_time(CONFIG)
    assert found.start_s > 0
    assert found.generation_s + found.completion_s > 0
