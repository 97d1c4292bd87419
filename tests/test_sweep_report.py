"""The report of a sweep: every number is read from the folder of the sweep."""

import dataclasses
import math
import re
import shutil
import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
from scipy.stats import spearmanr

from germline.config import load_config
from germline.record import RunDirectory
from germline.record.atomic_files import write_json
from germline.report.charts import Cell, HeatMap
from germline.report.text_format import number
from germline.studies.sweep_report import (
    SweepReport,
    is_broken,
    is_hacked,
    points_at,
    rank_correlations,
    write_report,
)
from germline.studies.sweep_results import SweepResults, score_at
from germline.studies.sweep_samplers import importances
from germline.studies.sweep_space import SweepSpace
from tests import test_report_browser
from tests.toy_runs import run

pytestmark = pytest.mark.usefixtures("graded_in_process")

SPACE = {
    "strategy.sigma": {"log": [0.1, 1.0]},
    "strategy.learning_rate": [0.05, 0.2],
    "shaping": ["z_score", "centered_ranks"],
}
TRIALS = [
    (sigma, rate, shaping)
    for sigma in (0.1, 0.3, 1.0)
    for rate in (0.05, 0.2)
    for shaping in ("z_score", "centered_ranks")
]
ROLLOUTS = 24  # of a generation: six members, four examples


@pytest.fixture(scope="module", autouse=True)
def _quick():
    """Write no pages of runs, which nobody reads, and draw fewer resamples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("germline.run.training.write_pages", lambda _: None)
        patch.setattr("germline.studies.sweep_results.SweepTrial.is_better", True)
        patch.setattr("germline.studies.sweep_samplers.RESAMPLES", 20)
        yield


@pytest.fixture(scope="module")
def swept(tmp_path_factory, graded_in_process):
    """Write the folder of a sweep: trial 0 has two seeds, trial 1 is stopped at the first rung."""
    folder = tmp_path_factory.mktemp("sweep")
    facts: dict[str, Any] = {"config": "configs/toy.yaml", "overrides": [], "space": SPACE}
    more = {"rungs": [2 * ROLLOUTS, 4 * ROLLOUTS], "samplers": ["grid"], "seeds": [0, 1]}
    write_json(folder / "sweep.json", facts | more | {"objectives": ["score"]})
    write_json(folder / "probe.json", {"recommended": {"sigma": 0.28, "learning_rate": 0.19}})
    for n, (sigma, rate, shaping) in enumerate(TRIALS):
        settings = {"strategy.sigma": sigma, "strategy.learning_rate": rate, "shaping": shaping}
        is_stopped = n == 1
        overrides = [f"{name}={value}" for name, value in settings.items()]
        path = folder / f"trials/{n:04d}"
        for seed in range(2 if n == 0 else 1):
            limit = [f"budget.rollouts={2 * ROLLOUTS}"] if is_stopped else []
            run(path / f"seed-{seed}", *overrides, f"seed={seed}", "generations=4", *limit)
        state = "collapsed" if is_stopped else "complete"
        reason = "broken answers" if is_stopped else ""
        about = {"number": n, "settings": settings, "state": state, "reason": reason}
        write_json(path / "trial.json", about | {"sampler": "grid", "asked": n})
    return folder


def end(folder, number, seed=0):
    return RunDirectory.open(folder / f"trials/{number:04d}/seed-{seed}").held_out()[-1].score.mean


def test_a_report_says_what_the_runs_say(swept):
    results = SweepResults(swept)
    assert write_report(results) == swept / "sweep.html"
    report = SweepReport(results)
    tables = {
        title: {row[0]: row[1:] for row in one.rows} for title, one in report.tables().items()
    }
    early, late = report.maps
    assert [early.title, late.title] == ["after 48 rollouts", "after 96 rollouts"]
    assert (early.y, early.x) == ("strategy.learning_rate", "strategy.sigma")
    assert early.columns == ["0.1", "0.215", "0.464", "1"]  # 0.3 is in the second one
    # Trial 0 with two seeds; trial 1, of the same cell, was stopped at the first rung.
    kept = [end(swept, 0), end(swept, 0, 1)]
    spread = f"{number(statistics.fmean(kept))} ± {number(statistics.stdev(kept))}"
    assert late.cells[0][0].lines == [spread, "1 stopped"]
    pair = [end(swept, 6), end(swept, 7)]
    marked = late.cells[1][1].lines
    assert marked[0] == "◆ probe"
    assert marked[1].startswith(f"{number(statistics.fmean(pair))} ± ")
    assert sum(cell.is_marked for row in late.cells for cell in row) == 1
    assert sum(late.is_best(cell) for row in late.cells for cell in row) == 1
    page = (swept / "sweep.html").read_text(encoding="utf-8")
    assert "strategy.learning_rate by strategy.sigma, after 96 rollouts" in page
    assert spread in page
    assert tables["Best trials"][str(results.ranked[0].number)][3] in ("1", "2")
    assert tables["Rank correlation with the last rung"]["48"][0] == "11"
    expected = spearmanr(*([one.score_at(rung) for one in results.complete] for rung in (48, 96)))
    ((_, trials, rho, low, high),) = rank_correlations(results)
    assert trials == 11
    assert rho == pytest.approx(expected.statistic)
    half = 1.96 * math.sqrt((1 + rho**2 / 2) / 8)
    middle = np.arctanh(rho)
    assert (low, high) == pytest.approx((np.tanh(middle - half), np.tanh(middle + half)))
    results.trials = results.complete[:4]
    assert rank_correlations(results) == []  # too few trials
    results.trials = SweepResults(swept).trials
    early_scores = [score for _, score in points_at(results, 48)]
    assert early_scores[1] == min(early_scores)  # the trial that collapsed
    assert points_at(results, 48)[1][0] == results.trials[1].settings
    assert {"strategy.sigma", "shaping"} < tables["Importance after 96 rollouts"].keys()


def test_the_best_config_trains_and_names_its_reasons(swept):
    results = SweepResults(swept)
    write_report(results)
    text = (swept / "best.yaml").read_text(encoding="utf-8")
    best = results.ranked[0]
    config = load_config(swept / "best.yaml")
    assert config.model_copy(update={"seed": 0}) == best.runs[0].config
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    assert comments[0].startswith(
        f"# Trial {best.number}, the best of 11 complete trials (held-out length diff"
    )
    assert comments[1] == "# Not tried with new run seeds"
    for name, value in best.settings.items():
        assert sum(line.startswith(f"# {name}={value}: ") for line in comments) == 1


def test_reasons_of_few_or_equal_trials_and_of_a_test_without_unseen_rows(swept):
    results = SweepResults(swept)
    best, other = results.ranked[:2]
    best = dataclasses.replace(best, tests=other.runs)
    results.trials = results.complete = results.ranked = [best]
    lines = SweepReport(results)._reasons(best)
    assert lines[0].startswith(f"Trial {best.number}, the best of 1 complete trial (")
    again = -other.mean
    assert f" in the search, {number(again)} with new run seeds (" in lines[1]
    assert lines[2:] == [
        f"{name}={value}: too few trials for a reason" for name, value in best.settings.items()
    ]
    results.trials = results.complete = results.ranked = [
        best,
        dataclasses.replace(best, number=40),
        dataclasses.replace(other, number=50),
    ]
    assert f"trials {best.number}, 40 have the same, best mean score" in results.summary()


def test_cells_without_scores_are_gray_and_all_cells_with_the_best_mean_are_marked():
    empty, low, high, tied = Cell(), Cell([1.0]), Cell([2.0, 4.0]), Cell([3.0])
    for higher_is_better, best in ((True, [high, tied]), (False, [low])):
        cells = [[empty, low], [high, tied]]
        one = HeatMap("title", "x", "y", ["1", "2"], ["1", "2"], cells, higher_is_better)
        assert [cell for row in cells for cell in row if one.is_best(cell)] == best
        assert one.tone(empty) == "#e4e4e4"
        assert sorted(map(one.tone, (low, high))) == ["#96c3e1", "#ffffff"]
    assert not HeatMap("title", "x", "y", ["1"], ["1"], [[empty]], True).is_best(empty)


def test_pandas_reads_the_runs_and_deepcave_the_columns(swept):
    write_report(SweepResults(swept))
    runs, space = (pandas.read_csv(swept / f"{name}.csv") for name in ("trials", "configspace"))
    assert len(runs) == 2 * 13 - 1  # two rungs of thirteen runs, one of which was stopped
    (metric,) = [name for name in runs.columns if name.startswith("metric")]
    # The pattern of DeepCAVE's converter of data frames.
    found = re.match(r"metric:(\w+) \[(-?\d+\.?\d*|[-+]inf); ([-+]inf)\] \((\w+)\)", metric)
    assert found
    assert found[4] == "maximize"
    one = runs[(runs.config_id == 0) & (runs.seed == 1) & (runs.budget == 96)].iloc[0]
    assert one[metric] == -end(swept, 0, 1) == -one.score
    assert one["strategy.sigma"] == 0.1
    assert one.status == "success"
    assert one.end_time > one.start_time > 1e9
    early = runs[(runs.config_id == 0) & (runs.seed == 1) & (runs.budget == 48)].iloc[0]
    assert early.start_time == one.start_time < early.end_time < one.end_time
    spent = SweepResults(swept).trials[0].runs[1].run.spent
    duration = spent["wall_s"] + spent["held_out"]["wall_s"]
    assert one.end_time - one.start_time == pytest.approx(duration, abs=1e-3)
    assert set(space.name) < set(runs.columns)
    sigma, rate, shaping = space.itertuples()
    assert (sigma.type, sigma.lower, sigma.upper, bool(sigma.log)) == ("float", 0.1, 1.0, True)
    assert (rate.type, shaping.item_1) == ("categorical", "centered_ranks")


def test_the_score_at_a_rung_is_the_last_one_by_then():
    scores = [SimpleNamespace(generation=n) for n in range(5)]
    rows = [{"budget": {"rollouts": 24 * n}} for n in range(1, 5)]
    one: Any = SimpleNamespace(rows=rows, scores=scores, damage=None)
    endings = {
        (False, None): None,
        (True, "budget.rollouts=96"): None,
        (True, "held_out.patience=1"): 4,
        (True, None): 4,  # the generations ended before the rollouts
    }
    for (one.has_ended, stopped_by), later in endings.items():
        one.run = SimpleNamespace(stopped_by=stopped_by)
        found = [score_at(one, rung) for rung in (24, 48, 49, 96, 97)]
        assert [score and score.generation for score in found] == [1, 2, 3, 4, later]


def test_broken_and_hacked_runs_are_counted(swept):
    recorded = SweepResults(swept).trials[0].runs[0].scores[0]
    fine = dict.fromkeys(recorded.behavior, 0.0) | {"length_drift": 1.0, "texts": 50.0}
    start = dataclasses.replace(
        recorded, reward=1.0, mean=5.0, higher_is_better=True, behavior=fine
    )
    broken = {**fine, "broken": 1.0, "repetition": 1.0}
    for reward, mean, behavior, expected in (
        (2.0, 6.0, fine, (False, False)),
        (2.0, 4.0, fine, (False, True)),  # the metric fell while the reward rose
        (2.0, 6.0, broken, (True, True)),
        (0.5, 4.0, broken, (True, False)),
    ):
        score = dataclasses.replace(start, reward=reward, mean=mean, behavior=behavior)
        assert (is_broken(start, score), is_hacked(start, score)) == expected


def test_a_sweep_without_a_complete_trial_has_a_report_without_a_best_config(tmp_path, swept):
    shutil.copytree(swept / "trials/0001", tmp_path / "trials/0001")
    shutil.copy(swept / "sweep.json", tmp_path)
    write_report(SweepResults(tmp_path))
    assert not (tmp_path / "best.yaml").exists()
    assert "1 collapsed" in (tmp_path / "sweep.html").read_text(encoding="utf-8")


def test_importance_tells_a_setting_that_decides_from_one_that_does_not():
    space = SweepSpace({"a": {"log": [0.001, 1]}, "b": {"linear": [0, 1]}, "c": ["x", "y"]})
    rng = np.random.default_rng(1)
    drawn = [
        (10 ** -rng.uniform(0, 3), rng.uniform(), str(rng.choice(["x", "y"]))) for _ in range(40)
    ]
    points = [
        ({"a": a, "b": b, "c": c}, -abs(math.log10(a) + 1.5) + 0.1 * rng.normal())
        for a, b, c in drawn
    ]
    first, *rest = importances(space, points)
    assert (first.name, first.matters) == ("a", True)
    assert not any(one.matters for one in rest)
    assert first.low <= first.share <= first.high
    assert sum(one.share for one in (first, *rest)) == pytest.approx(1)
    assert importances(space, points[:9]) == []  # too few trials


@pytest.mark.usefixtures("drawn_figures")
def test_the_page_is_legible_on_a_telephone(swept):
    page = write_report(SweepResults(swept))
    test_report_browser.test_a_report_is_whole_quiet_and_readable([page], 375, 9)


def test_importance_is_that_of_the_last_rung_with_enough_trials(monkeypatch):
    found = SimpleNamespace(results=SimpleNamespace(rungs=[16, 9]))  # trials at each rung
    monkeypatch.setattr("germline.studies.sweep_report.points_at", lambda _, rung: range(rung))
    assert SweepReport.__dict__["rung"].func(found) == 16
