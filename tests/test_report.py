"""The figure: it shows what the rows say, and draws whatever state a run is in."""

import math
from pathlib import Path

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report.plots import draw_evolution, evolution_charts
from germline.report.text_format import run_title
from tests.synthetic_runs import BATCH, DIGEST, record, score


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load_config({}), DIGEST, threads=1)


def test_the_figure_shows_fitness_with_gaps_and_scores_with_95_percent_intervals(run) -> None:
    for generation, rewards in enumerate(([1.0, 0.0], [math.nan, math.nan], [3.0, 1.0])):
        run.write(record(generation, [[one, one] for one in rewards]), BATCH)
    for generation, mean in ((0, 0.25), (1, 0.75), (3, 0.5)):
        run.write_held_out(score(generation, mean), [], BATCH)
    fitness, held_out = evolution_charts(run)
    curve, best = fitness.series
    assert (list(curve.y), list(best.y)) == ([0.5, None, 2.0], [1.0, None, 3.0])
    assert [curve.low[2], curve.high[2]] == pytest.approx([1.4, 2.6])
    center, marked = held_out.series
    assert held_out.title == "held-out exact"
    assert list(center.y) == [0.25, 0.75, 0.5]
    half = 1.96 * 0.05
    assert [center.low[2], center.high[2]] == pytest.approx([0.5 - half, 0.5 + half])
    assert marked.label == "best: 0.75 after 1"
    assert draw_evolution(run) == run.path / "evolution.png"
    assert run.figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("generations", [0, 1])
def test_a_run_that_has_hardly_begun_can_be_drawn(run: RunDirectory, generations: int) -> None:
    for generation in range(generations):
        run.write(record(generation), BATCH)
    draw_evolution(run)


def test_the_title_names_task_space_strategy_population_and_sigma() -> None:
    config = load_config(
        {
            "task": "countdown",
            "space": {"rank": 4},
            "strategy": {
                "population": 30,
                "sigma": {"start": 0.01, "end": 0.001},
                "learning_rate": 0.01,
            },
            "seed": 7,
        }
    )
    assert run_title(config) == (
        "countdown · nano · low_rank r = 4 · nes",
        "N = 30, sigma 0.01 to 0.001, learning rate 0.01, run seed 7",
    )
    assert "· full ·" in run_title(load_config({"space": "full"}))[0]
    assert run_title(load_config({}))[1] == "N = 32, sigma auto, learning rate auto, run seed 0"
