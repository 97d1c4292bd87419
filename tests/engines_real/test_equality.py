"""Every engine has the outputs of the inprocess engine: in fp32, greedy, on the nano model.

Masters and exports must be equal, and an evaluation must not change the weights. Log-probabilities,
which are sums in another order, may differ by TOLERANCE, and a token only where the two most likely
tokens were about equally likely.
"""

from itertools import chain

import pytest

from tests.engines_real.program import EXAMPLES, GENERATIONS, MEMBERS, SPACES
from tests.engines_real.recordings import CASES

TOLERANCE = 1e-3
SEQUENCES = (GENERATIONS + 1) * (MEMBERS + 1) * EXAMPLES

pytestmark = [
    # In this order all spaces of an engine follow one another, with one server.
    pytest.mark.parametrize("space", SPACES, scope="session"),
    pytest.mark.parametrize("case", CASES, scope="session"),
]


def flat(rows):
    """Return the sequences of `[generations][members][prompts]`, one after another."""
    return list(chain.from_iterable(chain.from_iterable(rows)))


def apart(one, other):
    """Return the largest difference between log-probabilities `[members][prompts]`."""
    rows = zip(chain.from_iterable(one), chain.from_iterable(other), strict=True)
    return max(abs(a - b) for row, same in rows for a, b in zip(row, same, strict=True))


def error(pair):
    """Return the largest difference between log-probabilities of the same tokens."""
    rows = zip(flat(pair.one.log_probabilities), flat(pair.other.log_probabilities), strict=True)
    return max(abs(a - b) for one, other in rows for a, b in zip(one, other, strict=True))


def test_log_probabilities_agree_in_all_generations(pair):
    assert len(flat(pair.one.log_probabilities)) == SEQUENCES > 1000
    assert error(pair) <= TOLERANCE


def test_tokens_differ_only_where_two_are_about_equally_likely(pair):
    measured = error(pair)
    both = zip(flat(pair.one.tokens), flat(pair.other.tokens), strict=True)
    for (one, other), (margins, seconds) in zip(both, flat(pair.other.margins), strict=True):
        if one == other:
            continue
        place = next(k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        assert one[place] == seconds[place]
        assert margins[place] < 2 * measured


def test_texts_end_for_the_same_reason(pair):
    both = zip(flat(pair.one.tokens), flat(pair.other.tokens), strict=True)
    ends = zip(flat(pair.one.finishes), flat(pair.other.finishes), strict=True)
    for (one, other), (end, other_end) in zip(both, ends, strict=True):
        assert one != other or end == other_end


def test_stop_strings_cut_the_same_texts(pair):
    assert "stop" in [finish for _text, finish in chain.from_iterable(pair.one.cut)]
    assert pair.one.cut == pair.other.cut


def test_conversations_of_several_turns_have_the_same_tokens(pair):
    """But for texts in which two tokens were about equally likely, after which all may differ."""
    one, other = (list(chain.from_iterable(record.turns)) for record in (pair.one, pair.other))
    assert len(one) == len(other) == 3 * 6
    assert {len(turns) for turns in one} == {4}
    assert sum(a == b for a, b in zip(one, other, strict=True)) >= 17


def test_mistake_15_no_output_is_that_of_the_weights_before_an_update(pair):
    """The prompts are the same after every update, and the long ones are in a prefix cache."""
    for generation in range(1, GENERATIONS + 1):
        for scores, expected, before in zip(
            pair.one.log_probabilities[generation][-1],
            pair.other.log_probabilities[generation][-1],
            pair.one.log_probabilities[generation - 1][-1],
            strict=True,
        ):
            assert scores[0] == pytest.approx(expected[0], abs=TOLERANCE)
            assert scores != before


def test_outputs_of_members_and_generations_differ(pair):
    """Otherwise the tests above could not recognize an engine that evaluates the wrong member."""
    first, *_, last = pair.one.tokens
    assert sum(row != first[-1] for row in first[:-1]) >= MEMBERS - 2
    assert last[-1] != first[-1]


def test_recorded_rewards_lead_every_engine_to_the_same_masters(pair):
    start, evaluated, *updated = pair.one.digests
    assert len(updated) == GENERATIONS
    assert len({start, *updated}) == GENERATIONS + 1
    assert evaluated == start
    assert pair.one.digests == pair.other.digests


def test_an_evaluation_does_not_change_the_served_center(pair, case):
    """SGLang forms batches as requests arrive, which changes the last bits: it has a tolerance."""
    before, after = pair.one.again
    assert apart(before, after) <= (TOLERANCE / 10 if case == "sglang" else 0)
    # Both may come from a member that was left in the weights: they must equal the reference.
    assert apart(before, pair.other.again[0]) <= TOLERANCE
