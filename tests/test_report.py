"""The figure: it shows what the rows say, and draws whatever state a run is in."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from germline.config import load_config
from germline.record import RunDirectory
from germline.report.matplotlib_plots import draw_evolution, evolution_figure
from germline.report.text_format import run_title
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load_config({}), DIGEST, threads=1)


def line(axes: Axes, label: str) -> list[float]:
    [found] = [one for one in axes.get_lines() if one.get_label() == label]
    return [float(one) for one in np.asarray(found.get_ydata())]


def test_the_figure_is_a_picture_in_the_run_directory(run: RunDirectory) -> None:
    run.write(record(0), BATCH)
    assert draw_evolution(run) == run.path / "evolution.png"
    assert run.figure.read_bytes().startswith(b"\x89PNG")


def test_the_figure_shows_mean_best_and_the_20_80_band_of_fitness(run: RunDirectory) -> None:
    run.write(record(0, [[1.0, 1.0], [0.0, 0.0]]), BATCH)
    run.write(record(1, [[3.0, 3.0], [1.0, 1.0]]), BATCH)
    axes = evolution_figure(run).axes[0]
    assert line(axes, "mean") == [0.5, 2.0]
    assert line(axes, "best member") == [1.0, 3.0]
    band = axes.collections[0].get_datalim(axes.transData)
    assert (band.y0, band.y1) == (pytest.approx(0.2), pytest.approx(2.6))


def test_the_figure_labels_the_held_out_score_at_start_and_end(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.25), [], BATCH)
    run.write(record(0, held_out=score(1, 0.5)), BATCH)
    run.write_held_out(score(2, 0.75), [], BATCH)
    axes = evolution_figure(run).axes[1]
    assert [one.get_text() for one in axes.texts] == ["0.25", "0.75"]
    assert axes.get_ylabel() == "held-out exact"


def test_error_bars_are_95_percent_intervals(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.5), [rollout(0, 7, 1.0)], BATCH)
    [bars] = evolution_figure(run).axes[1].collections
    assert isinstance(bars, LineCollection)
    [segment] = bars.get_segments()
    assert segment[:, 1] == pytest.approx([0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05])


def test_a_generation_without_fitness_leaves_a_gap(run: RunDirectory) -> None:
    for generation, reward in enumerate([1.0, math.nan, 2.0]):
        run.write(record(generation, [[reward, reward], [reward, reward]]), BATCH)
    assert math.isnan(line(evolution_figure(run).axes[0], "mean")[1])
    draw_evolution(run)


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
