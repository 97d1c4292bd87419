"""Elo ratings by Bradley and Terry: the equations and the intervals."""

import math
import random

import pytest

from germline.run.elo import ELO_SCALE, Verdict, rate_models

STRENGTHS = {"weak": 900.0, "base": 1000.0, "good": 1080.0, "best": 1250.0}


def chance(first, second):
    return 1 / (1 + 10 ** ((STRENGTHS[second] - STRENGTHS[first]) / 400))


def drawn(prompts, seed=0):
    """Draw one verdict per prompt and pair from known strengths."""
    generator = random.Random(seed)
    names = sorted(STRENGTHS)
    return [
        Verdict(prompt, *((one, two) if generator.random() < chance(one, two) else (two, one)))
        for prompt in range(prompts)
        for number, one in enumerate(names)
        for two in names[number + 1 :]
    ]


def games(first, second, won, lost):
    """Return games of two models, each on a prompt of its own."""
    return [
        Verdict(prompt, *((first, second) if prompt < won else (second, first)))
        for prompt in range(won + lost)
    ]


def by_name(found):
    return {one.model: one for one in found}


def test_two_models_differ_by_the_log_odds_of_their_wins():
    found = by_name(rate_models(["a", "b"], games("a", "b", 30, 10), "b"))
    assert found["a"].rating - 1000 == pytest.approx(400 * math.log10(31 / 11), abs=1e-9)
    assert (found["b"].rating, found["b"].low, found["b"].high) == (1000, 1000, 1000)
    assert (found["a"].wins, found["a"].losses) == (30, 10)


def test_expected_wins_are_the_wins_that_were_counted():
    # The condition of the maximum: the gradient of the log-likelihood is 0.
    verdicts = drawn(50)
    found = by_name(rate_models(list(STRENGTHS), verdicts, "base"))
    for name in STRENGTHS:
        expected = sum(
            1 / (1 + math.exp((found[other].rating - found[name].rating) / ELO_SCALE))
            for one in verdicts
            for other in {one.winner, one.loser} - {name}
            if name in (one.winner, one.loser)
        )
        added = sum(  # one more win and one more loss against every other model
            2 / (1 + math.exp((found[other].rating - found[name].rating) / ELO_SCALE)) - 1
            for other in {*STRENGTHS} - {name}
        )
        assert expected + added == pytest.approx(found[name].wins, abs=1e-8)


def test_known_strengths_are_within_the_intervals():
    # 30 intervals of 95 %: with independent ones, 25 or more contain the strength in 99.9 %.
    inside = 0
    for seed in range(10):
        found = by_name(rate_models(list(STRENGTHS), drawn(120, seed), "base"))
        for name in ("weak", "good", "best"):
            inside += found[name].low <= STRENGTHS[name] <= found[name].high
            assert found[name].high - found[name].low < 250
    assert inside >= 25


def test_the_order_of_models_and_verdicts_changes_no_bit():
    verdicts = drawn(40)
    expected = rate_models(sorted(STRENGTHS), verdicts, "base", seed=3)
    for seed in range(5):
        shuffled, names = list(verdicts), list(STRENGTHS)
        random.Random(seed).shuffle(shuffled)
        random.Random(seed).shuffle(names)
        assert rate_models(names, shuffled, "base", seed=3) == expected
    assert rate_models(names, shuffled, "base", seed=4) != expected


@pytest.mark.parametrize("won", [20, 200])
def test_who_never_lost_is_above_by_what_a_few_losses_would_mean(won):
    # The rule of three: up to 3 losses in so many games are compatible with none.
    high, low = rate_models(["a", "b"], games("a", "b", won, 0), "b")
    assert (high.model, low.rating) == ("a", 1000)
    assert high.rating == pytest.approx(1000 + 400 * math.log10(won + 1))
    assert high.low == pytest.approx(1000 + 400 * math.log10(won / 3), abs=100)


def test_models_without_verdicts_are_equal():
    found = rate_models(["a", "b", "c"], [], "b")
    assert [one.rating for one in found] == pytest.approx([1000] * 3)
    assert found[0].low < 700
    assert found[0].high > 1300


def test_verdicts_about_one_prompt_are_resampled_together():
    alone = games("a", "b", 24, 16)
    together = [Verdict(one.prompt // 8, one.winner, one.loser) for one in alone]
    spreads = []
    for verdicts in (alone, together):
        found = by_name(rate_models(["a", "b"], verdicts, "b"))["a"]
        spreads.append(found.high - found.low)
    assert spreads[1] > 1.3 * spreads[0]
