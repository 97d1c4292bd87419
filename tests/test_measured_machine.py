"""A machine is corrected by a short training: its times are those that were measured."""

import pytest

from germline.config import load_config
from germline.estimates.estimate import estimate
from germline.estimates.hardware import GPUS
from germline.estimates.here import texts_here
from germline.estimates.model_shape import shape_of
from germline.run.measured_machine import OVERRIDES, measured_machine


def test_a_corrected_machine_takes_the_factor_and_the_start_more():
    config, shape = load_config({"model": "nano", "task": "conciseness"}), shape_of("nano")
    texts = texts_here(config)
    before = estimate(config, shape, texts, GPUS["80gb"])
    after = estimate(config, shape, texts, GPUS["80gb"].corrected(3.0, 60.0))
    assert abs(after.seconds.total / before.seconds.total - 3) < 1e-9
    assert abs(after.run_s - 3 * before.run_s - 60) < 1e-6 * after.run_s


@pytest.mark.slow
def test_the_correction_is_that_of_a_short_training():
    config = load_config({"model": "nano", "task": "conciseness", "engine": {"device": "cpu"}})
    shape = shape_of("nano")
    machine = measured_machine(config, shape, GPUS["80gb"])
    short = load_config(config.model_dump(), list(OVERRIDES))
    factors = {
        machine.operation_s / GPUS["80gb"].operation_s,
        GPUS["80gb"].bandwidth / machine.bandwidth,
    }
    assert max(factors) / min(factors) < 1 + 1e-9
    assert abs(min(factors) - 1) > 1e-3  # the data sheet is that of a GPU
    assert estimate(short, shape, texts_here(short), machine).seconds.total > 0
    assert machine.start_s > 0
