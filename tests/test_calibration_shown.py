"""What people are told of a calibrated sigma, of measured steps, and of scores of few examples."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

import germline
from germline.cli.progress_view import BARS, LiveView
from germline.config import load_config
from germline.evaluation.kl_divergence import MemberKl
from germline.record import RunDirectory
from germline.record.metrics_rows import calibrated_kl
from germline.report import charts
from germline.report.run_facts import RunFacts
from germline.report.text_format import score
from germline.run.build_parts import build_run_parts
from germline.run.model_card import model_card
from germline.studies.probe import probe
from germline.types import Completion, GermlineError, HeldOutScore, SeedPerturbation, SigmaTrial
from tests import toy_runs
from tests.wrappers import FleetWrapper

pytestmark = pytest.mark.usefixtures("graded_in_process")

AUTO = ("strategy={kind: nes, population: 6}", "generations=2")
EMPTY = Completion("", (), "stop", 1)
SCORE = HeldOutScore(0, "length", 3.0, 0.5, 20, -3.0, values=(3.0,) * 20)


def terminal():
    return Console(width=120, record=True, file=io.StringIO(), color_system=None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a finished run, the trials that it told of, and its records."""
    training = germline.train(
        toy_runs.settings(*AUTO), tmp_path_factory.mktemp("calibrated") / "run"
    )
    trials: list[SigmaTrial] = []
    training.on_trial = trials.append
    records = list(training)
    return RunDirectory.open(training.directory.path), trials, records


def rendered(view):
    view.console.print(view.render())
    return view.console.export_text()


# --- while sigma is calibrated


def test_every_trial_is_told_before_and_after_it_is_measured(run):
    _, trials, records = run
    before, after = trials[0::2], trials[1::2]
    assert [one.kl for one in before] == [None] * len(after)
    assert [one.sigma for one in before] == [one.sigma for one in after]
    assert tuple(after) == records[0].calibration
    assert all(math.isfinite(one.kl) for one in after)
    assert records[1].calibration == ()


def test_the_live_view_of_a_resumed_run_begins_where_the_run_is(run):
    directory, _, records = run
    done, total = len(records), directory.config.generations
    view = LiveView(terminal(), directory)
    view.start()
    view.generation(replace(records[-1], generation=done))
    assert sum(mark in BARS for mark in rendered(view)) == done + 1  # the earlier ones too
    view.close()
    view = LiveView(terminal(), directory)
    view.start()
    view.close()
    shown = view.console.export_text()
    assert f"{done}/{total}" in shown
    assert "the score before training" not in shown


def test_the_page_says_what_sigma_was_calibrated_to_and_draws_the_steps(run):
    directory, _, records = run
    page = germline.write_report(directory.path).read_text()
    sigma = records[0].update.sigma
    assert f"Sigma was calibrated to {sigma:.3g} before generation 0" in page
    assert "Root mean square of the steps, in sigmas" in page
    rows = directory.generations()
    length = math.hypot(*records[1].update.coefficients) * records[1].update.learning_rate
    assert rows[1]["step_in_sigmas"] == pytest.approx(length / records[1].update.sigma)


def test_the_page_names_the_sigma_that_the_run_used_and_not_that_of_the_last_trial():
    trials = [{"sigma": 0.1, "kl": 0.0001}, {"sigma": 0.3, "kl": 0.0015}]
    rows = [{"generation": 0, "sigma": 0.36, "calibration": trials}]
    run = RunFacts.__new__(RunFacts)
    vars(run).update(rows=rows, config=load_config({}))
    assert charts.calibrated(run) == (
        " Sigma was calibrated to 0.36 before generation 0 (KL divergence about 0.00216 nats per "
        "token)."
    )


@pytest.mark.parametrize(
    ("sigma", "kl"),
    [(0.108, 0.00050), (0.16, 0.00239), (0.218, 0.0082), (0.109, 0.00052), (0.0535, 0.00012)],
)
def test_the_divergence_of_a_sigma_is_that_of_the_trials_beside_it(sigma, kl):
    # From the last trial by the square of sigma, 0.108 had the target for its divergence.
    trials = [{"sigma": 0.107, "kl": 0.00048}, {"sigma": 0.218, "kl": 0.0082}]
    assert calibrated_kl({"calibration": trials}, sigma) == pytest.approx(kl, rel=0.02)
    nothing = [{"sigma": 0.1, "kl": 0.0}, {"sigma": 0.2, "kl": None}]
    assert calibrated_kl({"calibration": nothing}, sigma) is None


def test_the_model_card_has_the_values_that_the_config_leaves_to_the_run(run):
    directory, _, records = run
    text = model_card(directory, "here", "merged", 1)
    sigma, rate = (f"{getattr(records[1].update, name):.3g}" for name in ("sigma", "learning_rate"))
    assert f"| sigma | {sigma} in the last generation (`auto`) |" in text
    assert f"| learning rate | {rate} in the last generation (`auto`) |" in text
    assert "| sigma |" not in model_card(directory, "here", "merged", -1)


class Mute(FleetWrapper):
    """A fleet whose center writes nothing to some of the examples."""

    answered: int = 0

    def evaluate_center(self, examples, decoding, samples=1):
        found = self.inner.evaluate_center(examples, decoding, samples)
        rollouts = [
            one if place < self.answered else replace(one, completion=replace(EMPTY))
            for place, one in enumerate(found.rollouts)
        ]
        return replace(found, rollouts=tuple(rollouts))


@pytest.mark.parametrize("answered", [0, 2])
def test_prompts_that_the_model_does_not_answer_are_left_out_while_there_are_others(answered):
    with build_run_parts(toy_runs.settings(*AUTO)) as parts:
        fleet = Mute(parts.fleet)
        fleet.answered = answered
        divergence = MemberKl(fleet, parts.batch, 0, parts.decoding)
        pair = [SeedPerturbation(0, 0, 0, 1, 0.1), SeedPerturbation(0, 0, 0, -1, 0.1)]
        if answered:
            assert math.isfinite(divergence(pair))
        else:
            with pytest.raises(GermlineError, match=r"generated no token for any of .* number"):
                divergence(pair)


# --- settings that a measured search needs


def test_the_probe_looks_in_the_unit_in_which_the_config_searches():
    found = probe(toy_runs.settings(*AUTO, "graders.workers=1"))
    advised = found.overrides["strategy"]
    assert advised["sigma_unit"] == "rms"
    config = load_config(
        toy_runs.SETTINGS | {"strategy": {"population": 6}},
        [f"strategy.{name}={value}" for name, value in advised.items()],
    )
    assert config.strategy.unit == "rms"
    assert config.strategy.sigma == found.sigma  # type: ignore[attr-defined]


def test_a_weight_decay_that_moves_with_the_measured_rate_is_told(caplog):
    with build_run_parts(toy_runs.settings(*AUTO, "strategy.optimizer.weight_decay=0.1")):
        assert "weight_decay=0.1 acts by weight_decay x learning_rate" in caplog.text
    caplog.clear()
    with build_run_parts(toy_runs.settings("strategy.optimizer.weight_decay=0.1")):
        assert "weight_decay" not in caplog.text


# --- scores of few examples


def test_equal_values_are_not_given_a_standard_error_of_zero():
    assert score(replace(SCORE, standard_error=0.0, n=3)) == "3 (all values equal)"
    one = replace(SCORE, standard_error=math.nan, n=1)
    assert score(one) == "3 (one example: no standard error)"
    assert score(SCORE) == "3 ± 0.5"
