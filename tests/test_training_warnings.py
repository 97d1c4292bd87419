"""Warnings of a weak signal during training: once, by the third generation, in every view."""

from dataclasses import replace

import germline
from germline.record.metrics_rows import generation_row
from germline.report.advice import WINDOW
from germline.run.training_warnings import SignalWarnings
from tests.test_report_signals import made, silent
from tests.toy_runs import SETTINGS


def test_a_weak_signal_is_logged_once_and_again_when_it_returns(caplog):
    warnings = SignalWarnings([])
    some = [*silent(5), *[made(0) for _ in range(2 * WINDOW)], *silent(4)]
    for generation, one in enumerate(some):
        warnings.tell(generation_row(replace(one, generation=generation)))
    first, again = caplog.messages
    assert first.startswith("after 3 generations: no signal for 3 generations")
    assert again.startswith("after 28 generations: no signal")


def test_advice_that_comes_and_goes_is_logged_once(caplog):
    warnings = SignalWarnings([])
    for generation in range(40):
        agreement = 0.9 if generation % 4 == 3 else -0.4
        warnings.tell(generation_row(made(generation, agreement=agreement, directions=1000.0)))
    (said,) = caplog.messages
    assert said.startswith("after 3 generations: the updates of the two halves of a batch hardly")


def test_a_training_from_python_warns_of_ties_in_its_third_generation(tmp_path, caplog):
    training = germline.train(SETTINGS, tmp_path, reward=lambda completion, example: 0.5)
    said = ["no signal" in caplog.text for _ in training]
    assert said == [False, False, True, True]
    assert "after 3 generations: no signal" in caplog.text
    assert "a larger strategy.sigma.target_kl" in caplog.text
    assert caplog.text.count("after ") == 1
