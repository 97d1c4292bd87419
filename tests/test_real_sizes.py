"""The benchmark of real sizes, at a size that is none."""

import argparse
from typing import Any

import pytest

from benchmarks import real_sizes
from benchmarks.real_sizes import SHAPES, VARIANTS, Work, measured, report, save_random

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
    options = {"shapes": ["tiny"], "dtypes": ["float32"], "variants": VARIANTS, "repeats": 2}
    lines = list(report(argparse.Namespace(**options, **SIZES)))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    assert {len(row) for row in rows} == {10}
    assert [row[2] for row in rows[2:]] == list(VARIANTS)
    assert rows[4][7:] == ["0.50", "4.00", "0.25"]


def test_the_shapes_have_the_sizes_of_their_published_models():
    billions = {
        "Qwen2.5-0.5B": 0.494,
        "Qwen2.5-1.5B": 1.544,
        "Qwen3-0.6B": 0.596,
        "Gemma-3-1B": 1.000,
        "Llama-3.2-1B": 1.236,
    }
    found = {name: real_sizes.count(name) / 1e9 for name in SHAPES if name != "tiny"}
    assert found == pytest.approx(billions, rel=2e-3)
