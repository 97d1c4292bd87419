"""Callbacks of a training, and what a training says about itself."""

import pytest

import germline
from germline.types import GenerationRecord
from tests.toy_runs import SETTINGS, journal

pytestmark = pytest.mark.usefixtures("graded_in_process")


class Log:
    def __init__(self):
        self.seen = []

    def on_generation(self, record):
        self.seen.append(record.generation)

    def on_held_out(self, score):
        self.seen.append(f"score {score.generation}")

    def on_end(self, training):
        self.seen.append(training.directory.report.exists())


def test_callbacks_see_generations_scores_and_the_end(tmp_path):
    everything = Log()
    functions: list[GenerationRecord] = []
    training = germline.train(SETTINGS, tmp_path, callbacks=[everything, functions.append])
    training.run()
    assert everything.seen == ["score 0", 0, 1, "score 2", 2, 3, "score 4", True]
    assert [record.generation for record in functions] == [0, 1, 2, 3]


def test_the_score_at_an_early_stop_is_seen_once(tmp_path):
    log = Log()
    limits = {"held_out": {"every": 1, "examples": 4}, "budget": {"rollouts": 1}}
    germline.train({**SETTINGS, **limits}, tmp_path, callbacks=[log]).run()
    assert log.seen == ["score 0", 0, "score 1", True]


def test_a_callback_that_fails_is_named_and_costs_nothing(tmp_path, caplog):
    class Broken:
        calls = 0

        def on_generation(self, record):
            self.calls += 1
            raise ConnectionError("no network")

    broken = Broken()
    training = germline.train(SETTINGS, tmp_path / "a", callbacks=[broken]).run()
    plain = germline.train(SETTINGS, tmp_path / "b").run()
    assert broken.calls == 1
    assert "callbacks: on_generation of" in caplog.text
    assert "no network" in caplog.text
    assert journal(training.directory.path) == journal(plain.directory.path)
