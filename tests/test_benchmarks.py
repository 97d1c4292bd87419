"""Benchmarks at their smallest size: tables say what was measured, and what was not."""

import pytest
import torch

from benchmarks import scoring
from benchmarks.field_way import linear_floor
from benchmarks.shapes import QWEN, TOY, random_model

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "billions"), [("0.5B", 0.494), ("1.5B", 1.543), ("7B", 7.615)])
def test_the_shapes_have_the_numbers_of_their_published_models(name, billions):
    assert QWEN[name].numbers / 1e9 == pytest.approx(billions, rel=2e-3)


def test_a_shape_counts_the_weights_of_its_model():
    model = random_model(TOY, CPU).model
    counted = {name: p.numel() for name, p in model.named_parameters() if p.dim() == 2}
    linear = sum(size for name, size in counted.items() if "layers" in name)
    sides = sum(sum(p.shape) for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n)
    assert linear == TOY.linear
    assert sides == TOY.sides
    assert sum(counted.values()) == TOY.numbers


def test_a_shared_prefix_lowers_the_floor_of_matrix_products():
    model = random_model(TOY, CPU).model
    rows = {"rows": 64, "prompt_tokens": 40, "new_tokens": 1}
    counted = []
    for shared in ((0, 1), (38, 32)):
        products = linear_floor(model, **rows, shared=shared)
        with torch.profiler.profile(with_flops=True) as profile:
            products()
        counted.append(sum(one.flops for one in profile.key_averages()))
    assert counted[1] < counted[0] / 5


def test_the_scoring_benchmark_measures_both_spaces(monkeypatch):
    monkeypatch.setattr(scoring, "PROMPTS", 2)
    head, *rows, sampling = scoring.report([2], 1, scoring.CLOCKS["cpu"])
    assert len(rows) == len(scoring.SPACES)
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == len(head.splitlines()[0].strip("|").split("|"))
        assert min(float(cell.replace(",", "")) for cell in cells[2:]) > 0
    assert sampling.count("center") == len(scoring.SPACES)
