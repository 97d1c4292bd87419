"""Benchmarks at their smallest size: tables say what was measured, and what was not."""

import numpy as np
import pytest
import torch

from benchmarks import scaling, scaling_out, scoring
from benchmarks.field_way import linear_floor
from benchmarks.gpu_population import Work, report
from benchmarks.shapes import QWEN, TOY, random_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lines():
    work = Work(prompts=2, new_tokens=3, rows=16, cuda_graphs=True)
    return list(report(["0.5B"], [4], CPU, work, repeats=1))


def test_the_gpu_benchmark_measures_the_toy_shape_on_a_cpu(lines):
    row = next(line for line in lines if line.startswith("| toy"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    head = next(line for line in lines if line.startswith("| shape"))
    assert len(cells) == len(head.strip("|").split("|"))
    speeds = [float(cell.replace(",", "")) for cell in cells[2:5]]
    peaks = [float(cell) for cell in cells[8:11]]
    assert min(speeds) > 0
    assert min(peaks) > 0


def test_without_a_gpu_its_table_says_what_is_unmeasured(lines):
    assert "Not measured, as there is no GPU: 0.5B" in lines[-1]
    assert not any(line.startswith("| 0.5B") for line in lines)


@pytest.mark.gpu
def test_on_a_gpu_the_smallest_shape_of_qwen_is_measured():
    work = Work(prompts=2, new_tokens=4, rows=16, cuda_graphs=True)
    found = list(report(["0.5B"], [8], torch.device("cuda"), work, repeats=1))
    assert any(line.startswith("| 0.5B | 8 |") for line in found)
    assert not any("Unmeasured" in line for line in found)


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


def test_a_law_is_found_again_in_what_it_made_up():
    points = scaling.grid([64, 128])
    law = np.array([2e-4, 3e-11, 1e-8, 0.0])
    made = [
        scaling.Measured(scaling.predicted(point, "generate", law), 1.0, 1.0) for point in points
    ]
    found = scaling.fitted(points, made, "generate")
    assert found == pytest.approx(law, rel=1e-6, abs=1e-15)


def test_held_out_points_do_not_change_the_fit():
    points = scaling.grid([64, 128])
    law = np.array([2e-4, 3e-11, 1e-8, 0.0])
    values = [scaling.predicted(point, "generate", law) for point in points]
    wild = [
        scaling.Measured(9.0 if point.held_out else value, 1.0, 1.0)
        for point, value in zip(points, values, strict=True)
    ]
    assert scaling.fitted(points, wild, "generate") == pytest.approx(law, rel=1e-6, abs=1e-15)


def test_a_small_generation_is_measured_near_what_is_counted():
    engine = scaling.engine_of(64)
    found = scaling.measured(engine, scaling.Point(64, members=4, prompts=2, tokens=2), repeats=1)
    weights = sum(one.nbytes for one in engine.serving.values())
    assert weights < found.memory < 3 * weights
    assert found.generate > 0
    assert found.update > 0


def test_predictions_name_every_case_and_send_kilobytes_instead_of_gradients():
    rows = list(scaling_out.table())[2:]
    assert len(rows) == len(scaling_out.CASES)
    for case in scaling_out.CASES:
        sent, returned, gradients = scaling_out.network(case)
        assert sent < 20_000 < returned < gradients
        assert scaling_out.memory(case) < scaling_out.Gpu().memory


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
