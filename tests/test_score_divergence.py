"""A held-out scorer that disagrees with the reward: found where it does, and said in every view."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from germline.cli.application import app
from germline.cli.line_view import LineView
from germline.cli.live_view import LiveView
from germline.cli.train_summary import print_result
from germline.evaluation.held_out import score_of_values
from germline.evaluation.score_divergence import find_divergences
from germline.record import RunDirectory
from germline.record.metrics_rows import held_out_row
from germline.report.html_page import write_report
from germline.report.score_divergence_advice import score_divergence_advice
from tests.synthetic_runs import record
from tests.toy_runs import run, settings

RISING = (0.2, 0.4, 0.6, 0.7, 0.8, 0.85)
FALLING = (0.5, 0.6, 0.62, 0.4, 0.3, 0.25)
FLAT = (0.5,) * 6


def curve(means, examples, noise, seed):
    """Return values of examples around means: examples differ, and so does every score."""
    random = np.random.default_rng(seed)
    level = random.normal(scale=0.2, size=examples)
    return [
        [float(one) for one in mean + level + random.normal(scale=noise, size=examples)]
        for mean in means
    ]


def scored(rewards, judged, *, examples=60, noise=0.1, seed=0, higher=True, every=2):
    """Make up scores whose rewards and scores by a judge follow two curves."""
    pairs = zip(
        curve(rewards, examples, noise, seed), curve(judged, examples, noise, seed + 1), strict=True
    )
    return [
        replace(
            score_of_values(every * place, "exact", reward, higher_is_better=True),
            rewards=tuple(reward),
            scorers=(
                score_of_values(every * place, "judge", score, higher_is_better=higher),
                score_of_values(every * place, "steady", reward, higher_is_better=True),
            ),
        )
        for place, (reward, score) in enumerate(pairs)
    ]


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """A run whose reward rose while a judge found its completions worse."""
    path = run(tmp_path_factory.mktemp("diverged") / "run", "generations=10", "held_out.every=2")
    written = [json.dumps(held_out_row(one)) + "\n" for one in scored(RISING, FALLING)]
    (path / "held_out.jsonl").write_text("".join(written))
    return path


def test_a_judge_that_falls_while_the_reward_rises_is_found_and_measured():
    (found,) = find_divergences(scored(RISING, FALLING))
    assert (found.scorer, found.since, found.examples) == ("judge", 4, 60)
    assert found.rise.low < 0.225 < found.rise.high  # (0.8 + 0.85) / 2 - 0.6
    assert found.fall.low < 0.345 < found.fall.high  # 0.62 - (0.3 + 0.25) / 2
    assert found.rise.now - found.rise.before == pytest.approx(found.rise.by)
    assert found.fall.before - found.fall.now == pytest.approx(found.fall.by)
    assert max(found.rise.chance, found.fall.chance) < 1e-6


def test_a_judge_of_costs_disagrees_when_it_rises():
    costs = [1 - one for one in FALLING]
    assert [one.scorer for one in find_divergences(scored(RISING, costs, higher=False))] == [
        "judge"
    ]
    assert find_divergences(scored(RISING, costs)) == []


@pytest.mark.parametrize(
    ("rewards", "judged"),
    [
        (RISING, RISING),
        (RISING, FLAT),
        (FALLING, FALLING),  # both get worse, which is a decline of the run
        (FLAT, FALLING),
        (RISING[:2], FALLING[:2]),
    ],
)
def test_curves_that_agree_are_left_alone(rewards, judged):
    assert find_divergences(scored(rewards, judged)) == []


def test_chance_alone_is_hardly_ever_called_so():
    # The bound is 1 %: of 200 runs without a trend, more than 8 have a probability of 0.01 %.
    alarms = sum(bool(find_divergences(scored(FLAT, FLAT, seed=7 * seed))) for seed in range(200))
    assert alarms <= 8


def test_the_same_examples_are_compared():
    # Examples that differ by far more than the trend hide it, unless they are paired.
    def wide(scores):
        return [
            replace(
                one,
                rewards=tuple(3 * place + r for place, r in enumerate(one.rewards)),
                scorers=tuple(
                    score_of_values(
                        one.generation,
                        by.metric,
                        [3 * place + value for place, value in enumerate(by.values)],
                        higher_is_better=True,
                    )
                    for by in one.scorers
                ),
            )
            for one in scores
        ]

    (found,) = find_divergences(wide(scored(RISING, FALLING)))
    assert found.rise.high - found.rise.low < 0.2


def test_scores_before_a_judge_was_added_are_left_out():
    scores = scored(RISING, FALLING)
    bare = [replace(one, scorers=(), rewards=()) for one in scores[:1]]
    (found,) = find_divergences([*bare, *scores[1:]])
    assert found.since == 4


def test_it_is_said_since_when_how_sure_and_what_to_do():
    config = settings("engine=inprocess")
    (advice,) = score_divergence_advice(config, Path("runs/one"), scored(RISING, FALLING))
    assert (
        "The reward and the held-out scorer judge disagree since update 4: the reward"
        in advice.what
    )
    assert "of held-out completions rose from 0.5" in advice.what
    assert "their score by judge became worse from 0.5" in advice.what
    assert "p-value below 1e-6), the same 60 examples compared." in advice.what
    assert "learned what its reward likes" in advice.remedy
    assert advice.commands == ("germline export runs/one --generation 3 --out runs/one-before",)


def test_every_view_shows_both_scores_and_the_warning(diverged):
    directory = RunDirectory.open(diverged)
    out = io.StringIO()
    print_result(Console(file=out, width=200), directory, quiet=True)
    assert "held-out scorer judge: " in out.getvalue()
    assert "scorer judge disagree since update 4" in out.getvalue()

    out = io.StringIO()
    lines = LineView(Console(file=out, width=200), directory)
    lines.start()
    lines.generation(record(9, held_out=directory.held_out()[-1].score))
    assert "held-out judge 0.2" in out.getvalue()
    assert "scorer judge disagree since update 4" in out.getvalue()

    view = LiveView(Console(file=io.StringIO(), width=200), directory)
    view.scores = [row.score for row in directory.held_out()]
    view.divergences = score_divergence_advice(directory.config, diverged, view.scores)
    out = io.StringIO()
    Console(file=out, width=200).print(view.render())
    assert "scorer judge: " in out.getvalue()
    assert "scorer judge disagree since update 4" in out.getvalue()

    done = CliRunner().invoke(app, ["report", str(diverged), "--json"])
    (told,) = json.loads(done.stdout)["runs"]
    assert any("scorer judge disagree since update 4" in line for line in told["advice"])


def test_the_page_shows_both_curves_and_the_warning(diverged):
    page = write_report(diverged).read_text(encoding="utf-8")
    assert "The reward and judge disagree" in page
    assert "Held-out scorer judge: its scores of the same completions" in page
    assert "Held-out scorer steady" in page
    assert "Reward of the held-out completions" not in page  # it is the metric here
    assert '<th class="n">judge</th><th class="n">steady</th>' in page


def test_the_page_draws_the_reward_where_it_is_not_the_metric(tmp_path):
    path = run(tmp_path / "run", "held_out.scorers={long: {kind: length, start: 0, end: 8}}")
    page = write_report(path).read_text(encoding="utf-8")
    assert "Reward of the held-out completions" in page
    assert "Held-out scorer long: its scores" in page
    assert "lower is better" in page


def test_the_page_of_a_run_without_scorers_has_neither(tmp_path):
    page = write_report(run(tmp_path / "run")).read_text(encoding="utf-8")
    assert "Held-out scorer" not in page
    assert "disagree since" not in page
