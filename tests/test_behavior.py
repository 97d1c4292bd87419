"""Answers that are broken or changed are told from good ones, each detector on cases by hand."""

from dataclasses import replace

import pytest

import germline
from germline.evaluation.behavior import (
    DETECTORS,
    Answer,
    behavior,
    flags,
    length_drift,
    loop_share,
    recorded_answers,
    verdict,
)
from germline.record.metrics_rows import HeldOutSample
from germline.types import Completion
from tests.toy_runs import settings

END, PAD = 0, 1
SPECIAL = frozenset({END, PAD})


def wrote(text, *tokens, prompt="What is 2 + 2?", gold="4", finish="eos"):
    return Answer(prompt, Completion(text, tokens or (7, END), finish, 3), gold)


def several(*texts, **changes):
    return [wrote(text, prompt=f"question {n}?", **changes) for n, text in enumerate(texts)]


def found_in(answer, start=()):
    return flags([answer], start, SPECIAL)[0]


@pytest.mark.parametrize("text", ["", "<|endoftext|>", "<|endoftext|><|endoftext|>"])
def test_mistake_11_special_tokens_alone_are_seen_whatever_decoding_makes_of_them(text):
    assert "special_tokens" in found_in(wrote(text, END, END))
    assert "special_tokens" not in found_in(wrote("4", PAD, 7, END))
    assert behavior([wrote(text, END)], (), SPECIAL)["broken"] == 1


def test_an_end_token_alone_is_seen_without_knowing_which_tokens_are_special():
    assert flags([wrote("", 99)]) == [["empty", "special_tokens"]]
    assert flags([wrote("", 99, finish="stop")]) == [["empty"]]  # a stop string cut it off


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (wrote("4"), []),
        (wrote(" \n\t"), ["whitespace"]),
        (wrote("4 4 4 4", 5, 5, 5, 5, finish="length"), ["truncated"]),
        (wrote("a long text", finish="context"), ["truncated"]),
        (wrote("hahahaha", *(5,) * 9, END), ["repetition"]),
        (wrote("ha " * 8, finish="stop"), []),  # tokens decide where they are known
        (wrote(r"\boxed{}"), ["format_only"]),
        (wrote("<answer></answer>..."), ["format_only"]),
        (wrote(r"\boxed{4}"), []),
        (wrote("<answer>4</answer>"), []),
        (wrote("*", gold="+"), []),  # signs are what the task asks for
        (wrote("Ответ: четыре"), ["language_switch"]),
        (wrote("Ответ: 4", prompt="Сколько будет 2 + 2?"), []),
        (wrote("Ответ: 4", gold="Ответ: 4"), []),
        (wrote("The area is πr²"), []),
        (wrote("4\nUser: and 3 + 3?\n"), ["invented_turns"]),
        (wrote("4\nuser\nand 3 + 3?\nassistant\n6"), ["invented_turns"]),
        (wrote("4<|im_start|>user"), ["invented_turns"]),
        (wrote("Assistant: 4"), []),  # nothing is before it
        (wrote("The user: a person who asks."), []),
    ],
)
def test_each_detector_on_one_answer(answer, names):
    assert found_in(answer) == names


def test_text_alone_shows_loops_where_tokens_were_not_recorded():
    old = HeldOutSample("2 + 2?", "no no no no no no no no no", "4", 0.0)
    assert flags(recorded_answers([old])) == [["repetition"]]


def test_gibberish_is_what_the_start_model_found_improbable():
    assert "gibberish" not in behavior(several("4"))  # nobody read it
    read = [replace(wrote("qzx"), improbable=is_so) for is_so in (True, False)]
    assert behavior(read)["gibberish"] == 0.5


SAME = ["Let me think about this question step by step, "] * 6


def test_answers_that_share_a_text_or_a_long_beginning_have_collapsed():
    start = several("one", "two", "three", "four", "five", "six", gold="")
    equal = several(*["yes"] * 5, "two", gold="")
    alike = several(*(f"{text}so it is {n}" for n, text in enumerate(SAME)), gold="")
    for now in (equal, alike):
        assert behavior(now, start)["template_collapse"] == (5 if now is equal else 6) / 6
        assert behavior(now, now)["template_collapse"] == 0  # as the start did
        assert behavior(now)["template_collapse"] == 0  # the start is not known
    assert behavior(several(*["yes"] * 6), several(*"123456"))["template_collapse"] == 1
    assert behavior(several(*["4"] * 6), several(*"123456"))["template_collapse"] == 0  # all gold
    assert behavior(several(*["yes"] * 4, "no", "two"), start)["template_collapse"] == 0
    assert behavior([wrote("yes", gold="")] * 6, start)["template_collapse"] == 0  # one prompt
    assert behavior(several(*[""] * 6), start)["template_collapse"] == 0  # that is `empty`


def test_lengths_are_compared_on_the_same_prompts():
    start = several("x" * 9, "x" * 19, "x" * 29)
    assert length_drift(several("x" * 4, "x" * 9, "x" * 14, "", ""), start) == 0.5
    assert length_drift([wrote("x" * 79)], start) == 4  # none is the same
    assert length_drift(start, start) == 1


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
    assert flags([wrote("ha" * 8, *(50,) * 8, *range(9))], (), many) == [["repetition"]]


def test_shares_count_texts_and_broken_counts_each_text_once():
    texts = [
        wrote("", END),  # empty, and of special tokens alone
        wrote(" \n\t", 7, END),
        wrote("hahaha", *(5,) * 9),
        wrote("qzx", 9, 8, END, finish="length"),
        wrote("4", 4, END),
    ]
    found = behavior(texts, (), SPECIAL)
    flagged = {name: found[name] for name in DETECTORS if found.get(name)}
    names = ("empty", "whitespace", "special_tokens", "repetition", "truncated")
    assert flagged == dict.fromkeys(names, 1 / 5)
    assert (found["broken"], found["texts"]) == (3 / 5, 5)


def test_a_verdict_is_about_what_rose_since_the_start():
    start = {"empty": 0.1, "truncated": 0.5, "broken": 0.1, "length_drift": 1.0, "texts": 20.0}
    assert verdict(start, start).word == "fine"
    assert verdict(start, start | {"truncated": 0.59}).word == "fine"
    changed = verdict(start, start | {"truncated": 0.65})
    assert (changed.word, changed.rises) == ("changed", {"truncated": (0.5, 0.65)})
    assert verdict(start, start | {"length_drift": 0.5}).word == "changed"
    assert verdict(start, start | {"length_drift": 1.9}).word == "fine"
    assert verdict(start, start | {"length_drift": 4.0, "texts": 9.0}).word == "fine"
    broken = verdict(start, start | {"empty": 0.35, "broken": 0.35})
    assert (broken.word, broken.rises) == ("broken", {"empty": (0.1, 0.35)})
    few = start | {"empty": 0.5, "broken": 0.5, "texts": 4.0}
    assert verdict(start, few).word == "fine"  # two of four texts


def shorter(completion, example):
    return 20 - len(completion)


@pytest.mark.usefixtures("graded_in_process")
def test_members_that_learn_to_write_the_end_token_alone_are_found_while_they_train(tmp_path):
    """The seeds' case: the end token is the shortest answer."""
    changes = ("task.stop=[]", "task.max_new_tokens=8", "strategy.learning_rate=1")
    length = ("strategy.population=20", "generations=20", "held_out.every=10")
    config = settings(*changes, *length)
    training = germline.train(config, tmp_path / "run", reward=shorter).run()
    last = training.directory.held_out()[-1]
    assert last.score.behavior["special_tokens"] == last.score.behavior["broken"] == 1
    assert last.score.behavior["length_drift"] < 0.5  # against the answers recorded at the start
    assert [one.completion for one in last.samples] == [""] * 5
    (found,) = [one for one in germline.findings(training.directory) if one.level == "warning"][:1]
    assert found.code == "broken_answers"
    assert "special tokens 0 % -> 100 %" in found.sentence
