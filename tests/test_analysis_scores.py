"""Scores of weights between and around models: points, noise, and what is said of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import germline
from germline.analysis import analyze, open_weights
from germline.analysis.scorer import Point, ScoreSettings, open_scorer
from germline.analysis.scores import ALL, HEAD, LINE, layer_groups, line_shape, shape_text, steps_of
from germline.analysis.weights import Request
from germline.evaluation.kl_divergence import KlDivergence, measure_texts
from germline.nano import NANO_DIR
from germline.run.build_parts import make_engine
from tests.refusals import refusal
from tests.slow_cases import mostly_slow

pytestmark = pytest.mark.usefixtures("graded_in_process")

SETTINGS: dict[str, Any] = {"task": "arithmetic", "limit": 24}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Nano with noise, which scores less: the way from `start` to nano is a learned direction."""
    made = {}
    for name, seed in (("start", 0), ("other", 1)):
        folder = shutil.copytree(NANO_DIR, tmp_path_factory.mktemp("models") / name)
        tensors = load_file(folder / "model.safetensors")
        generator = torch.Generator().manual_seed(seed)
        for tensor in tensors.values():
            spread = 0.3 * float(tensor.float().square().mean().sqrt())
            tensor += spread * torch.randn(tensor.shape, generator=generator)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        made[name] = str(folder)
    return made


@pytest.fixture
def scorer(folders, tmp_path):
    start = open_weights(folders["start"], folder=tmp_path)
    sources = ("nano", folders["other"])
    models = [open_weights(source, start=start, folder=tmp_path) for source in sources]
    settings = ScoreSettings(**SETTINGS)
    with open_scorer(Request("modes", models, settings, tmp_path), settings) as opened:
        yield opened


def test_a_point_scores_as_eval_does_and_the_start_is_served_again(scorer, tmp_path):
    nano, other = scorer.request.opened
    before = {name: one.clone() for name, one in scorer.engine.serving.items()}
    score, _ = germline.evaluate("nano", "arithmetic", limit=24, out=tmp_path / "completions.jsonl")
    assert scorer.values_at(Point(((1.0, nano),))).tolist() == [*score.values]
    point = Point(((0.25, nano), (0.5, other)), dict.fromkeys(before, 0.002))
    assert scorer.measured(point)[1]["kl_per_token"] > 0
    assert scorer.measured(Point())[1]["kl_per_token"] == 0
    assert all(torch.equal(before[name], one) for name, one in scorer.engine.serving.items())
    assert scorer.measured(Point())[1]["behavior"] == "fine"


def test_the_kl_is_that_of_two_engines(scorer):
    nano = scorer.request.opened[0]
    config = scorer.evaluated.config
    tuned: Any = make_engine(config.model_copy(update={"model": "nano"}), searched=False)
    start: Any = make_engine(config, searched=False)
    examples = scorer.evaluated.examples
    written = tuned.generate([None], examples, scorer.evaluated.decoding)
    expected = KlDivergence.of(measure_texts(tuned.read, start.read, [None], examples, written)[0])
    facts = scorer.measured(Point(((1.0, nano),)))[1]
    assert facts["kl_per_token"] == pytest.approx(expected.per_token, rel=1e-5)
    assert facts["kl_per_text"] == pytest.approx(expected.per_text, rel=1e-5)


def test_a_point_is_the_sum_of_its_parts(scorer):
    nano, other = scorer.request.opened
    name = next(name for name in scorer.request.start.shapes if "down_proj" in name)
    start, a, b = (one.read(name) for one in (scorer.request.start, nano, other))
    mixed = Point(((0.25, nano), (0.5, other))).read(name, start)
    torch.testing.assert_close(mixed, 0.25 * start + 0.25 * a + 0.5 * b)
    assert torch.equal(Point(((1.0, nano),)).read(name, start), a)
    assert torch.equal(Point().read(name, start), start)


def test_noise_has_its_size_and_is_on_its_tensors_only(scorer):
    nano = scorer.request.opened[0]
    one, two, *_ = scorer.request.start.shapes
    start, again = scorer.request.start.read(one), scorer.request.start.read(two)
    drawn = Point(((1.0, nano),), {one: 0.5}).read(one, start) - nano.read(one)
    assert float(drawn.square().mean().sqrt()) == pytest.approx(0.5, rel=0.02)
    assert torch.equal(Point((), {one: 0.5}).read(two, again), again)
    first, second, same = (Point((), {one: 1.0}, trial).read(one, start) for trial in (0, 1, 0))
    assert abs(float(((first - start) * (second - start)).mean())) < 0.05
    assert torch.equal(first, same)


def test_the_head_and_the_thirds_of_the_layers_are_groups(scorer):
    groups = {name: frozenset(names) for name, names in layer_groups(scorer).items()}
    assert groups[ALL] == frozenset(scorer.request.start.shapes)
    assert groups[HEAD] < groups[ALL]
    assert len(groups[HEAD]) == 1
    layers = [groups.pop(name) for name in ("layers 0 to 1", "layer 2", "layer 3")]
    assert not groups[HEAD] & frozenset().union(*layers)


def line(means, examples=200, seed=0):
    """Right and wrong answers with these shares, drawn for every point on its own."""
    rng = np.random.default_rng(seed)
    return (rng.random((len(LINE), examples)) < np.array(means)[:, None]).astype(float)


def test_a_valley_is_a_barrier():
    shape = line_shape(line([0.9, 0.9, 0.8, 0.5, 0.3, 0.2, 0.3, 0.5, 0.8, 0.9, 0.9]))
    barrier, (low, _) = shape["barrier"]
    assert barrier == pytest.approx(0.7, abs=0.1)
    assert low > 0.5
    assert shape["at"] == 0.5
    assert "a barrier, drop" in shape_text(shape)


def test_noisy_points_of_a_flat_line_are_no_barrier():
    shapes = [line_shape(line([0.5] * 11, seed=seed)) for seed in range(40)]
    certain = sum(shape["is_barrier"] for shape in shapes)
    assert certain <= 4  # 2.5 % are expected
    assert abs(np.mean([shape["barrier"][0] for shape in shapes])) < 0.01
    assert "no barrier" in shape_text(shapes[0])


def test_three_examples_that_become_right_are_neither_barrier_nor_bend():
    values = np.ones((len(LINE), 188))
    values[:4, 0] = values[:6, 1] = values[:9, 2] = 0
    shape = line_shape(values)
    assert not shape["is_barrier"]
    assert shape["half_sign"] == 0
    values[:9, :30] = 0
    shape = line_shape(values)
    assert shape["is_barrier"]
    assert shape["half_sign"] == 1


def test_the_middle_tells_a_late_rise_from_an_early_one():
    late = line_shape(line([0.1] * 8 + [0.5, 0.9, 0.9]))
    early = line_shape(line([0.1, 0.5, 0.8] + [0.9] * 8))
    assert "flat, then sharp" in shape_text(late)
    assert "most of the change comes first" in shape_text(early)
    assert late["half"][0] == pytest.approx(0.4, abs=0.1)
    assert early["half"][0] == pytest.approx(-0.4, abs=0.1)


@pytest.mark.parametrize("count", mostly_slow([1, 2, 3], quick=[2]))
def test_modes_end_at_the_models(count, folders, tmp_path):
    sources = ["nano", folders["other"], folders["start"]][:count]
    result = analyze("modes", sources, start=folders["start"], out=tmp_path, settings=SETTINGS)
    assert len(result.rows) == {1: 13, 2: 11, 3: 10}[count]
    nano, _ = germline.evaluate("nano", "arithmetic", limit=24, out=tmp_path / "nano.jsonl")
    place = {1: 10, 2: 0, 3: 0}[count]
    assert result.rows[place]["score"][0] == pytest.approx(nano.mean)
    assert (tmp_path / "modes.json").exists()
    assert (tmp_path / "modes.png").exists()
    assert len(result.notes) == (count < 3)


def test_large_noise_breaks_a_model_and_small_noise_does_not(tmp_path):
    settings = SETTINGS | {"scales": "0.001,2", "trials": 5, "groups": "all", "limit": 12}
    result = analyze("robustness", ["nano"], start="nano", out=tmp_path, settings=settings)
    small, large = result.rows
    assert small["without_noise"] == pytest.approx(np.mean(small["scores"]), abs=0.05)
    assert max(large["scores"]) < 0.1
    assert large["kl_per_token"] > 1 > small["kl_per_token"]
    assert large["rms"] == pytest.approx(2000 * small["rms"])
    mean, (low, high) = small["score"]
    assert low <= mean <= high  # of five trials there is an interval


def test_a_held_out_direction_has_the_length_of_the_learned_one(scorer):
    opened = scorer.request.opened
    learned, held_out = (scorer.norm(scorer.deviations(one)) for one in opened)
    run, steps = opened[0], steps_of(scorer, opened)
    at = {name: [one.after(((1.0, run),), 0.5) for one in some] for name, some in steps.items()}
    share, weights = at["held out"][0].parts[1]
    assert (at["held out"][0].parts[0], weights) == ((1.0, run), opened[1])
    assert share == pytest.approx(0.5 * learned / held_out)
    assert [one.parts for one in at["learned"]] == [((1.0, run), (0.5, run))]
    assert scorer.norm(at["random"][0].noise) == pytest.approx(0.5 * learned)
    assert [one.trial for one in at["random"]] == [0, 1, 2]


def test_the_way_to_a_better_model_has_a_slope_and_a_random_one_has_none(folders, tmp_path):
    settings = SETTINGS | {"distances": "1", "limit": 12}
    sources = ["nano", folders["other"]]
    result = analyze("directions", sources, start=folders["start"], settings=settings)
    means = {(m["from"], m["direction"]): m for m in result.rows if m["distance"] == "mean"}
    learned, random = means["start", "learned"], means["start", "random"]
    assert learned["slope"][1][0] > 0
    assert learned["slope"][0] > 2 * abs(random["slope"][0])
    for one in result.rows:
        assert one["gain"][0] == pytest.approx(one["slope"][0] + one["cost"][0])
    assert len(result.rows) == 12
    assert "nano" in result.notes[0]


def test_coverage_counts_what_the_tries_solve(folders, tmp_path):
    settings = SETTINGS | {"samples": 4, "scales": "0.05"}
    start = Path(folders["start"])
    result = analyze("coverage", ["nano"], start=start, out=tmp_path, settings=settings)
    tries = {row["tries"]: row for row in result.rows}
    assert [*tries] == ["start, sampled", "start, noise 0.05", "nano, sampled"]
    kept = germline.evaluate(
        *("nano", "arithmetic"), limit=24, samples=4, out=tmp_path / "nano.jsonl"
    )[0]
    expected = {one.metric: one.mean for one in kept.at_k if one.metric.startswith("pass")}
    found = {name: tries["nano, sampled"][name][0] for name in expected}
    assert found == pytest.approx(expected)
    for one in tries.values():
        shared = tries["start, sampled"]["solved"] - one["only_by_the_start's_samples"]
        assert one["solved"] == shared + one["not_by_the_start's_samples"]
        assert one["overlap"]["nano, sampled"] <= 1
    assert tries["nano, sampled"]["overlap"]["nano, sampled"] == 1
    assert tries["nano, sampled"]["greedy_better"] > tries["nano, sampled"]["worse"]
    assert tries["nano, sampled"]["p"] < 0.05
    assert "solved" in result.table[0]


def test_coverage_of_a_metric_that_is_no_share_counts_better_answers(folders, tmp_path):
    settings = {"task": "conciseness", "samples": 2, "scales": "0.05", "limit": 4}
    call: dict[str, Any] = {"start": folders["start"], "out": tmp_path, "settings": settings}
    result = analyze("coverage", ["nano"], **call)
    assert "better than greedy" in result.table[0]
    assert "best@2" in result.table[0]
    lines = next(tmp_path.glob("coverage-*.jsonl")).read_text().splitlines()
    kept = {row["key"]: np.array(row["samples"]) for row in map(json.loads, lines)}
    shorter = kept["2 at 1.0: start"] < kept["1 at 0.0: start"]  # lower is better
    assert result.rows[0]["better_than_greedy"] == shorter.any(axis=0).sum()


@pytest.mark.parametrize(
    ("what", "sources", "settings", "said"),
    [
        ("modes", ["nano"] * 4, {}, "at most 3 sources or generations, found 4"),
        ("modes", ["nano"], {"task": None}, "name a task (task=countdown)"),
        ("directions", ["nano"], {}, "has the weights of its start"),
        ("directions", ["nano"] * 3, {}, "at most 2 sources or generations, found 3"),
        ("robustness", ["nano"], {"scales": "0"}, "greater than 0"),
        ("robustness", ["nano"], {"scales": "a"}, "must be a number"),
    ],
)
def test_what_cannot_be_scored_is_refused(what, sources, settings, said, tmp_path):
    given = {k: v for k, v in (SETTINGS | settings).items() if v is not None}
    assert said in refusal(analyze, what, sources, start="nano", out=tmp_path, settings=given)


def test_a_start_of_another_shape_is_refused(tmp_path):
    folder = shutil.copytree(NANO_DIR, tmp_path / "short")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    short = open_weights(str(folder), folder=tmp_path)
    assert "model.norm.weight" not in short.shapes
    said = refusal(analyze, "modes", [str(folder)], start=str(folder), settings=SETTINGS)
    assert "model.norm.weight" in said
