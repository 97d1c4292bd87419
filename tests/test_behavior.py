"""Texts that are no answers are told from texts that are, each detector on cases by hand."""

import pytest

from germline.evaluation.degenerate_text import (
    degenerate_text_shares,
    is_special_only,
    loop_share,
)
from germline.types import Completion

END, PAD = 0, 1
SPECIAL = frozenset({END, PAD})


def wrote(text, *tokens):
    return Completion(text, tokens, "eos" if tokens[-1:] == (END,) else "length", 3)


@pytest.mark.parametrize("text", ["", "<|endoftext|>", "<|endoftext|><|endoftext|>"])
def test_mistake_11_special_tokens_alone_are_seen_whatever_decoding_makes_of_them(text):
    assert is_special_only(wrote(text, END, END), SPECIAL)
    assert not is_special_only(wrote(text, PAD, 7, END), SPECIAL)
    found = degenerate_text_shares([wrote(text, END)], SPECIAL)
    assert (found.garbage, found.improbable) == (1, None)  # it was not read


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ((), 0),
        ((5,) * 8, 1),
        ((5,) * 7, 0),  # too short to be more than a number such as 1000000
        ((5, 6, 7) * 3, 1),
        ((5, 6, 7, 8) * 2, 0),  # twice is emphasis
        ((2, 3, 4, *(5, 6) * 5, 9, 9), 10 / 15),
        (tuple(range(16)) * 3, 1),
        (tuple(range(17)) * 3, 0),
        (tuple(range(40)), 0),
        ((*(5, 6, 7) * 3, 5, 6), 1),  # the last round may be cut off
    ],
)
def test_the_loop_share_is_that_of_the_longest_stretch_of_one_n_gram(tokens, share):
    assert loop_share(tokens) == pytest.approx(share)


def test_special_tokens_are_no_part_of_what_a_text_says():
    many = frozenset(range(9))
    looping = degenerate_text_shares([wrote("ha" * 8, *(50,) * 8, *range(9))], many)
    assert (looping.looping, looping.garbage) == (1, 1)


def test_shares_count_texts_and_garbage_counts_each_text_once():
    texts = [
        wrote("", END),  # empty, and of special tokens alone
        wrote(" \n\t", 7, END),  # empty: a stop string cut everything off
        wrote("hahaha", *(5,) * 9),
        wrote("qzx", 9, 8, END),
        wrote("4", 4, END),
    ]
    found = degenerate_text_shares(texts, SPECIAL, improbable=[False, False, False, True, False])
    assert (found.empty, found.special_only) == (2 / 5, 1 / 5)
    assert (found.looping, found.improbable) == (1 / 5, 1 / 5)
    assert (found.garbage, found.texts) == (4 / 5, 5)
