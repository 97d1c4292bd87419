"""Sigma that is calibrated to a KL divergence: the trials, their end, and what is told of them."""

import math
from dataclasses import replace

import numpy as np
import pytest

import germline
from germline.config import AutoSigma, load_config
from germline.engines.master_weights import Masters
from germline.evaluation.kl_divergence import MemberKl
from germline.record import RunDirectory
from germline.record.metrics_rows import calibrated_kl
from germline.run import evaluation_cache
from germline.run.build_parts import build_run_parts
from germline.strategies.calibrated_sigma import CalibratedSigma, fit_floor
from germline.studies.probe import probe
from germline.types import Completion, GermlineError, SeedPerturbation, SigmaTrial, Update
from tests import toy_runs
from tests.wrappers import FleetWrapper

pytestmark = pytest.mark.usefixtures("graded_in_process")


def update(generation, *coefficients, sigma=0.1):
    return Update(0, generation, sigma, 0.1, coefficients)


def quadratic(sigma):
    """Return the divergence of a model on which sigma 0.02 gives the default target."""
    return 0.002 * (sigma / 0.02) ** 2


def calibrated(divergence, start=0.1):
    """Return the sigma that is found, and those that were tried."""
    tried = []

    def measured(sigma):
        tried.append(sigma)
        return divergence(sigma)

    found = CalibratedSigma(AutoSigma(), start)
    found.calibrate(0, measured)
    return found.at(0), tried


@pytest.mark.parametrize("start", [1e-5, 0.02, 3.0])
def test_sigma_goes_where_the_divergence_is_the_target(start, caplog):
    assert calibrated(quadratic, start)[0] == pytest.approx(0.02, rel=0.01)
    assert not caplog.text


@pytest.mark.parametrize(("found", "smaller"), [(math.nan, True), (math.inf, True), (-1e-9, False)])
def test_members_that_cannot_be_compared_move_sigma_the_right_way(found, smaller):
    first = iter([found])
    sigma, tried = calibrated(lambda sigma: next(first, quadratic(sigma)))
    assert (tried[1] < 0.1) == smaller
    assert sigma == pytest.approx(0.02, rel=0.01)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (0.0, r"KL 0 or below at sigma 0\.1 to 10.*space\.layers"),
        (-1e-9, r"KL 0 or below at sigma 0\.1 to 10.*space\.layers"),
        (math.nan, r"finite probability.*engine\.dtype=float32"),
        (math.inf, r"finite probability.*engine\.dtype=float32"),
    ],
)
def test_members_that_are_the_center_or_have_no_probability_are_refused(found, said):
    with pytest.raises(GermlineError, match=said):
        calibrated(lambda _sigma: found)


def cliff(sigma):
    """Return the divergence of members that are the center's, or garbage, with nothing between."""
    return 0.0 if sigma < 0.017 else 3.0


def test_a_cliff_is_enclosed_and_told(caplog):
    # Eightfold steps up and down would go on between the same two sigmas.
    sigma, _ = calibrated(cliff)
    assert 0.002 < sigma < 0.03
    assert "8 trials found no sigma with a KL near the target of 0.002 per token:" in caplog.text
    assert f"the run begins with sigma {sigma:g};" in caplog.text


STEEP = (
    *((0.1, 2e-5), (0.146, 0.00025), (0.168, 0.00079), (0.212, 0.00419), (0.283, 0.02)),
    *((0.415, 0.0912), (10, 9)),
)
"""Sigma and KL divergence that a reader's task had, and ends that continue them."""


def of_the_reader(sigma):
    sigmas, divergences = np.log(STEEP).T
    return float(np.exp(np.interp(np.log(sigma), sigmas, divergences)))


@pytest.mark.parametrize(
    ("steep", "trials", "end"),
    [
        # The trials went on to 0.146 and 0.415, as if the divergence of one of the two were wrong.
        (of_the_reader, [0.1, 0.8, 0.283, 0.168, 0.218], 0.191),
        # As measured in space=lora: (1) went from 0.1 to 0.226 and back to 0.103, eight times.
        (lambda sigma: 0.000392 * (sigma / 0.1) ** 3.92, [0.1, 0.226, 0.15], 0.153),
    ],
)
def test_trials_of_a_steep_divergence_do_not_go_to_and_fro(steep, trials, end, caplog):
    assert calibrated(steep) == (pytest.approx(end), trials)
    assert not caplog.text


@pytest.mark.parametrize("floor", [0.0037, 0.015])
def test_sigma_does_not_drown_in_the_rounding_of_half_precision(floor, caplog):
    sigma, tried = calibrated(lambda sigma: floor + quadratic(sigma))
    assert quadratic(sigma) == pytest.approx(floor, rel=0.01)
    assert len(tried) <= 4
    assert not caplog.text


def test_a_divergence_that_is_below_0_by_chance_does_not_send_sigma_beyond_those_that_break():
    # Measured on nano with texts of 8 tokens; the search jumped from 0.237 to 1.9, a KL of 7.1.
    measured = {0.1: -0.0014, 0.153: -0.0029, 0.237: -0.0046, 0.283: -0.0043}
    measured |= {0.367: 0.0116, 0.476: 0.106, 0.8: 1.71}
    tried = []

    def divergence(sigma):
        tried.append(sigma)
        return measured.get(sigma, -0.003 if sigma < 0.34 else 0.01)

    sigma = CalibratedSigma(AutoSigma(), 0.1)
    sigma.calibrate(0, divergence)
    assert max(tried) == 0.8
    assert 0.28 < sigma.at(0) < 0.37


def test_the_floor_is_that_of_smollm2_in_bf16():
    # Measured with configs/smollm2/capital_letters.yaml; without a floor the search went to 0.0016.
    floor, slope = fit_floor([(0.1, 0.741), (0.0125, 0.011), (0.00532, 0.00365), (0.00394, 0.0041)])
    assert floor == pytest.approx(0.0023, rel=0.05)
    assert math.sqrt(floor / slope) == pytest.approx(0.006, rel=0.05)


def with_signal(generation, excess, sigma, directions=32):
    """Return an update of some directions, whose power exceeds its noise by this factor."""
    power = {"total": 2.0, "noise": 1.0, "excess": excess}
    told = update(generation, *(1.0, -1.0) * (directions // 2), sigma=sigma)
    return replace(told, strategy_state={"power": power})


@pytest.mark.parametrize(
    ("directions", "excesses", "factors"),
    [
        # Of a generation of 32 directions, z is sqrt(32 / 2) times the excess.
        (32, [0.0] * 8, [1, 3] + [7.07] * 6),
        (32, [0.36, 0.36] + [-1.0] * 6, [1] * 8),
        (32, [0.15] * 3 + [0.9] * 5, [1] * 8),  # 0.15 is no signal, and is not shown to be none
        (32, [0.2] * 4 + [0.9] * 4, [1] * 4 + [3] * 4),
        (64, [0.22] * 2 + [0.9] * 4, [1] * 2 + [3] * 4),
        (16, [0.3] * 4 + [0.9] * 4, [1] * 4 + [3] * 4),  # z is 1.7 after four generations
        (32, [-0.5] + [0.9] * 2 + [-0.5] * 5, [1] + [3] * 7),
    ],
)
def test_sigma_grows_until_the_members_have_shown_a_signal(directions, excesses, factors):
    sigma = CalibratedSigma(AutoSigma(), 0.02)
    sigma.calibrate(0, quadratic)
    played = []
    for generation, excess in enumerate(excesses):
        played.append(sigma.at(generation))
        sigma.tell(with_signal(generation, excess, played[-1], directions))
    assert played == pytest.approx([0.02 * factor for factor in factors], rel=0.001)


def test_sigma_grows_to_the_divergence_that_large_sigmas_have():
    # As of SmolLM2 in bf16: near the target, the divergence is that of rounding.
    sigma = CalibratedSigma(AutoSigma(), 0.1)
    sigma.calibrate(0, lambda sigma: 0.0013 * math.sqrt(sigma / 0.0036) + 55 * sigma**2)
    assert sigma.at(0) < 0.005
    for generation in range(5):
        sigma.tell(with_signal(generation, 0.0, sigma.at(generation)))
    assert sigma.at(5) == pytest.approx(math.sqrt(0.1 / 55), rel=0.1)


@pytest.mark.parametrize(("directions", "excess"), [(32, 0.0), (16, 0.3)])
def test_a_resumed_search_has_the_sigma_it_would_have_had(directions, excess):
    whole = CalibratedSigma(AutoSigma(every=3), 0.1)
    told = []
    for generation in range(10):
        whole.calibrate(generation, quadratic)
        one = with_signal(generation, excess, whole.at(generation), directions)
        told.append(replace(one, strategy_state={**one.strategy_state, **whole.state()}))
        whole.tell(told[-1])
    assert whole.at(10) > 3 * told[0].sigma
    again = CalibratedSigma(AutoSigma(every=3), 0.1)
    for one in told:
        again.tell(one)
    assert again.at(10) == whole.at(10)


AUTO = ("strategy={kind: nes, population: 6}", "generations=2")
EMPTY = Completion("", (), "stop", 1)


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


def test_every_trial_is_told_before_and_after_it_is_measured(run):
    _, trials, records = run
    before, after = trials[0::2], trials[1::2]
    assert [one.kl for one in before] == [None] * len(after)
    assert [one.sigma for one in before] == [one.sigma for one in after]
    assert tuple(after) == records[0].calibration
    assert all(math.isfinite(one.kl) for one in after)
    assert records[1].calibration == ()


def test_a_row_has_the_length_of_its_step_in_sigmas(run):
    directory, _, records = run
    rows = directory.generations()
    length = math.hypot(*records[1].update.coefficients) * records[1].update.learning_rate
    assert rows[1]["step_in_sigmas"] == pytest.approx(length / records[1].update.sigma)
    assert Update(0, 0, 0.5, 1.0, (3e200, -4e200)).step_in_sigmas == pytest.approx(1e201)
    assert Update(0, 0, 0.5, 1.0, (0.0,)).step_in_sigmas == 0


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


def sigmas(directory):
    return [entry.update.sigma for entry in directory.journal.read()]


class Mute(FleetWrapper):
    """A fleet whose center writes nothing to some of the examples."""

    answered: int = 0

    def evaluate_center(self, examples, decoding, samples=1, graders=None):
        found = self.inner.evaluate_center(examples, decoding, samples, graders)
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


@pytest.mark.parametrize("strategy", [AUTO, ()], ids=["calibrated", "given"])
def test_an_engine_that_ignores_noise_is_refused(strategy, tmp_path, monkeypatch):
    monkeypatch.setattr(Masters, "merged_tensors", lambda masters, _member: dict(masters.tensors))
    with pytest.raises(GermlineError, match="no reward can differ"):
        germline.train(toy_runs.settings(*strategy), tmp_path / "run").run()


def trials_of(out, *overrides):
    """Train a calibrated toy run; return the trials that it told of, and its directory."""
    training = germline.train(toy_runs.settings(*AUTO, *overrides), out)
    trials: list[SigmaTrial] = []
    training.on_trial = trials.append
    return trials, training.run().directory


def test_the_next_run_takes_over_the_divergences_and_has_the_same_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_cache, "FOLDER", tmp_path / "cache" / "calibration")
    measured, first = trials_of(tmp_path / "first")
    kept, second = trials_of(tmp_path / "second", "strategy.learning_rate=0.2", "seed=0")
    assert not any(one.is_kept for one in measured)
    assert [(one.sigma, one.kl) for one in kept] == [
        (one.sigma, one.kl) for one in measured if one.kl is not None
    ]
    assert all(one.is_kept for one in kept)
    assert second.generations()[0]["calibration"] == first.generations()[0]["calibration"]
    assert sigmas(second) == sigmas(first)
    _, third = trials_of(tmp_path / "third")
    assert third.journal.path.read_bytes() == first.journal.path.read_bytes()
    resumed = germline.resume(third.path, ["generations=3"]).run()  # of generation 2
    assert resumed.directory.journal.last_generation() == 2


@pytest.mark.parametrize(
    "override",
    [
        *("seed=1", "strategy.sigma.keep=false", "space=full", "task.max_new_tokens=9"),
        *("strategy.sigma_unit=std", "microbatch.members=3", "budget.rollouts=900"),
    ],
)
def test_what_changes_a_divergence_measures_it_again(override, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_cache, "FOLDER", tmp_path / "cache")
    trials_of(tmp_path / "first")
    trials, _ = trials_of(tmp_path / "second", override)
    assert not any(one.is_kept for one in trials)


@pytest.mark.parametrize("damage", ["gone", "not JSON", "null", "{}"])
def test_a_file_that_is_gone_damaged_or_unwritable_is_measured_again(damage, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_cache, "FOLDER", tmp_path / "cache")
    trials_of(tmp_path / "first")
    for file in (tmp_path / "cache").iterdir():
        file.unlink() if damage == "gone" else file.write_text(damage)
    assert not any(one.is_kept for one in trials_of(tmp_path / "second")[0])
    assert any(one.is_kept for one in trials_of(tmp_path / "third")[0])
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr(evaluation_cache, "FOLDER", tmp_path / "taken")
    assert not any(one.is_kept for one in trials_of(tmp_path / "fourth")[0])


def test_the_probe_looks_in_the_unit_in_which_the_config_searches():
    found = probe(toy_runs.settings(*AUTO, "graders.workers=1"))
    advised = found.settings
    assert advised["sigma_unit"] == "rms"
    config = load_config(
        toy_runs.SETTINGS | {"strategy": {"population": 6}},
        [f"strategy.{name}={value}" for name, value in advised.items()],
    )
    assert config.strategy.unit == "rms"
    assert config.strategy.sigma == found.sigma  # type: ignore[attr-defined]
