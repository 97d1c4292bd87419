"""Sigma that is calibrated to a KL divergence: the trials, their end, and its growth."""

import math

import numpy as np
import pytest

from germline.config import AutoSigma, Nes
from germline.strategies.calibrated_sigma import CalibratedSigma
from germline.strategies.nes import NaturalEvolution
from germline.types import GermlineError, Update


def update(generation, *coefficients, sigma=0.1):
    return Update(0, generation, sigma, 0.1, coefficients)


def quadratic(sigma):
    """Return the divergence of a model on which sigma 0.02 gives the default target."""
    return 0.002 * (sigma / 0.02) ** 2


@pytest.mark.parametrize("start", [1e-5, 0.02, 3.0])
def test_sigma_goes_where_the_divergence_is_the_target(start, caplog):
    sigma = CalibratedSigma(AutoSigma(), start)
    sigma.calibrate(0, quadratic)
    assert sigma.at(0) == pytest.approx(0.02, rel=0.01)
    assert not caplog.text


@pytest.mark.parametrize(("found", "smaller"), [(math.nan, True), (math.inf, True), (-1e-9, False)])
def test_members_that_cannot_be_compared_move_sigma_the_right_way(found, smaller):
    tried = []

    def divergence(sigma):
        tried.append(sigma)
        return found if len(tried) == 1 else quadratic(sigma)

    sigma = CalibratedSigma(AutoSigma(), 0.1)
    sigma.calibrate(0, divergence)
    assert (tried[1] < 0.1) == smaller
    assert sigma.at(0) == pytest.approx(0.02, rel=0.01)


@pytest.mark.parametrize("found", [0.0, -1e-9])
def test_members_that_never_differ_from_the_center_are_refused_and_sigma_stays_small(found):
    tried = []

    def divergence(sigma):
        tried.append(sigma)
        return found

    with pytest.raises(GermlineError, match=r"KL 0 or below at sigma 0\.1 to 10.*space\.layers"):
        CalibratedSigma(AutoSigma(), 0.1).calibrate(0, divergence)
    assert max(tried) <= 10


@pytest.mark.parametrize("found", [math.nan, math.inf])
def test_members_without_a_finite_probability_are_refused(found):
    with pytest.raises(GermlineError, match=r"finite probability.*engine\.dtype=float32"):
        CalibratedSigma(AutoSigma(), 0.1).calibrate(0, lambda _sigma: found)


def cliff(sigma):
    """Return the divergence of members that are the center's, or garbage, with nothing between."""
    return 0.0 if sigma < 0.017 else 3.0


def test_a_cliff_is_enclosed_and_told(caplog):
    # Eightfold steps up and down would go on between the same two sigmas.
    sigma = CalibratedSigma(AutoSigma(), 0.1)
    sigma.calibrate(0, cliff)
    assert 0.002 < sigma.at(0) < 0.03
    assert "8 trials found no sigma with a KL near the target of 0.002 per token (" in caplog.text
    assert f"the run begins with sigma {sigma.at(0):g};" in caplog.text


STEEP = (
    *((0.1, 2e-5), (0.146, 0.00025), (0.168, 0.00079), (0.212, 0.00419), (0.283, 0.02)),
    *((0.415, 0.0912), (10, 9)),
)
"""Sigma and KL divergence that a reader's task had, and ends that continue them."""


def test_a_steep_divergence_ends_between_two_sigmas_that_are_near_each_other(caplog):
    # The trials went on to 0.146 and 0.415, as if the divergence of one of the two were wrong.
    tried = []

    def steep(sigma):
        tried.append(sigma)
        sigmas, divergences = np.log(STEEP).T
        return float(np.exp(np.interp(np.log(sigma), sigmas, divergences)))

    found = CalibratedSigma(AutoSigma(), 0.1)
    found.calibrate(0, steep)
    assert tried == [0.1, 0.8, 0.283, 0.168, 0.218]
    assert found.at(0) == 0.191
    assert not caplog.text


def test_a_divergence_that_grows_with_nearly_the_fourth_power_does_not_go_to_and_fro(caplog):
    # As measured in space=lora: (1) went from 0.1 to 0.226 and back to 0.103, eight times.
    tried = []

    def steep(sigma):
        tried.append(sigma)
        return 0.000392 * (sigma / 0.1) ** 3.92

    found = CalibratedSigma(AutoSigma(), 0.1)
    found.calibrate(0, steep)
    assert tried == [0.1, 0.226, 0.15]
    assert steep(found.at(0)) == pytest.approx(0.002, rel=0.5)
    assert not caplog.text


def test_sigma_without_calibration_says_what_to_call():
    strategy = NaturalEvolution(Nes(), 0, 10)
    with pytest.raises(GermlineError, match=r"strategy\.calibrate\(0, divergence\).*number"):
        strategy.ask(0)


def test_sigma_grows_while_few_directions_tell_anything_and_shrinks_back():
    sigma = CalibratedSigma(AutoSigma(target_kl=0.002, max_kl=0.05), 0.02)
    sigma.calibrate(0, quadratic)
    played = []
    for generation in range(8):
        played.append(sigma.at(generation))
        sigma.tell(update(generation, 0.0, 0.0, 0.0, sigma=played[-1]))
    assert played[:3] == pytest.approx([0.02, 0.03, 0.045])
    assert quadratic(played[-1]) <= 0.05
    for generation in range(8, 14):
        sigma.tell(update(generation, 1.0, 1.0, 0.0, sigma=sigma.at(generation)))
    assert sigma.at(14) == 0.02


def test_a_hundred_generations_without_signal_leave_sigma_within_its_limit():
    sigma = CalibratedSigma(AutoSigma(), 0.1)
    sigma.calibrate(0, quadratic)
    for generation in range(100):
        sigma.tell(update(generation, 0.0, 0.0, sigma=sigma.at(generation)))
    assert quadratic(sigma.at(100)) <= 0.05


def test_a_resumed_search_has_the_sigma_it_would_have_had():
    whole = CalibratedSigma(AutoSigma(every=3), 0.1)
    told = []
    for generation in range(7):
        whole.calibrate(generation, quadratic)
        told.append(update(generation, 0.0 if generation < 4 else 1.0, sigma=whole.at(generation)))
        whole.tell(told[-1])
    again = CalibratedSigma(AutoSigma(every=3), 0.1)
    for one in told:
        again.tell(one)
    assert again.at(7) == whole.at(7)
