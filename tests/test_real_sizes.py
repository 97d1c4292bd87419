"""The benchmark of real sizes, at a size that is none."""

import argparse
from typing import Any

import pytest

from benchmarks import real_sizes
from benchmarks.published_shapes import SHAPES, count, save_random
from benchmarks.real_sizes import CONTEXT, VARIANTS, Measured, Work, in_turn, measured, report
from germline.engines.pretrained import load_tokenizer
from germline.engines.prompt_batch import encode_prompt, pad_prompts

SIZES: dict[str, Any] = {
    "members": 2,
    "prompts": 2,
    "tokens": 3,
    "field_members": 1,
    "threads": 1,
    "clock": "wall",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    save_random("tiny", path)
    return str(path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_measured(variant, folder):
    found = measured(Work(folder=folder, dtype="bfloat16", variant=variant, **SIZES))
    assert found.generation_s > 0
    assert found.peak > 0
    assert (found.outside_s is not None) == (variant in ("low_rank", "lora", "full"))


def test_the_table_has_a_row_for_every_variant_and_ratios_to_three_of_them(monkeypatch):
    seconds = dict(zip(VARIANTS, (8.0, 1.0, 2.0, 2.0, 4.0, 0.5), strict=True))
    monkeypatch.setattr(
        real_sizes,
        "in_a_process",
        lambda work: real_sizes.Measured(1.0, seconds[work.variant], None, 2e9),
    )
    options: dict[str, Any] = {"shapes": ["tiny"], "dtypes": ["float32"], "variants": VARIANTS}
    options |= {"repeats": 2, "keep": 1, "context": 0, "question_first": False}
    lines = list(report(argparse.Namespace(**options, **SIZES)))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    assert {len(row) for row in rows} == {11}
    assert [row[2] for row in rows[2:]] == list(VARIANTS)
    assert rows[4][8:] == ["0.50", "4.00", "0.25"]


def test_the_shapes_have_the_sizes_of_their_published_models():
    billions = {
        "Qwen2.5-0.5B": 0.494,
        "Qwen2.5-1.5B": 1.544,
        "Qwen3-0.6B": 0.596,
        "Gemma-3-1B": 1.000,
        "Llama-3.2-1B": 1.236,
    }
    found = {name: count(name) / 1e9 for name in SHAPES if name != "tiny"}
    assert found == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize("question_first", [False, True])
def test_long_prompts_share_the_context_that_comes_first(question_first, folder):
    work = Work(folder, "bfloat16", "plain", context=9, question_first=question_first, **SIZES)
    words, _ = load_tokenizer(folder)
    context = len(words(CONTEXT * 9)["input_ids"])
    padded = pad_prompts([encode_prompt(words, one) for one in work.examples()], 0)
    assert min(padded.lengths) > context
    assert (len(padded.prefix) >= context) != question_first


def test_the_processes_that_others_disturbed_least_are_kept(monkeypatch):
    busy = iter([(5.0, 0.9), (1.0, 0.0), (9.0, 0.8), (3.0, 0.1)])
    monkeypatch.setattr(
        real_sizes,
        "in_a_process",
        lambda _work: Measured(0.0, (one := next(busy))[0], None, 0.0, one[1]),
    )
    work = Work("", "bfloat16", "plain", **SIZES)
    assert in_turn([work], repeats=4, kept=2)["plain"].generation_s == 2.0
