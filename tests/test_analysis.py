"""`germline analyze`: deltas, cosine and trajectory, on changes that are known."""

import json
import math
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from germline.analysis import analyze, changes
from germline.analysis.analyze import ANALYSES
from germline.analysis.changes import (
    agreement,
    interval,
    path_statistics,
    power_law_exponent,
    spectrum,
    stable_rank,
)
from germline.analysis.weights import method_of, pairs_by_method, short_labels
from germline.cli.application import app
from germline.cli.results import analyze as command
from germline.record import RunDirectory
from germline.report.charts import mean_lines
from germline.run.weights import load_engine
from germline.signal_metrics import walked
from germline.types import GermlineError
from tests.other_process import python
from tests.refusals import refusal
from tests.tiny import save_tiny
from tests.toy_runs import ADAM_FULL, run

pytestmark = pytest.mark.usefixtures("graded_in_process")

UP = "model.layers.1.mlp.up_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("start"), "llama")


def changed(start, folder, **changes):
    """Write a copy of a model with a change of its tensors `up` and `down`."""
    tensors = load_file(start / "model.safetensors")
    for name, change in changes.items():
        tensors[{"up": UP, "down": DOWN}[name]] += change
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes((start / "config.json").read_bytes())
    return folder


def noise(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return run(tmp_path_factory.mktemp("toy") / "run", "space=full", "generations=12")


def test_the_spectrum_of_known_matrices():
    assert stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(1.5, rel=1e-3)
    matrix = noise(50, 30)
    norms = (singular := torch.linalg.svdvals(matrix)).square().sum() / singular[0] ** 2
    assert stable_rank(matrix) == pytest.approx(float(norms), rel=0.02)
    norms = (flat := noise(384, 384)).norm() ** 2 / torch.linalg.matrix_norm(flat, 2) ** 2
    assert stable_rank(flat) == pytest.approx(float(norms), rel=0.005)
    values = np.random.default_rng(1).pareto(1.5, 2000) + 1  # density of exponent 2.5
    assert power_law_exponent(values) == pytest.approx(2.5, abs=0.15)
    assert math.isnan(power_law_exponent(values[:5]))
    # The direction of the largest singular value is turned into that of the smallest one.
    turned = torch.eye(20)
    turned[0, 0] = turned[19, 19] = 0.8
    turned[0, 19], turned[19, 0] = -0.6, 0.6
    matrix = torch.diag(torch.arange(20.0, 0, -1))
    found = spectrum(matrix, matrix @ turned, widest=20)
    assert found["angle"] == pytest.approx(36.87, abs=0.01)
    assert spectrum(matrix.T, (matrix @ turned).T, 20)["alpha_after"] == found["alpha_after"]
    assert "angle" not in spectrum(matrix, matrix @ turned, widest=19)


def test_deltas_are_those_of_the_tensors(start, tmp_path):
    change = noise(96, 64) * 0.01
    change[:24] = 0
    small = torch.full((64, 96), 1e-7)
    end = changed(start, tmp_path / "end", up=change, down=small)
    result = analyze("deltas", [end], start=start)
    before = load_file(start / "model.safetensors")
    up, down = (result.values["tensors"]["end"][name] for name in (UP, DOWN))
    assert up["norm"] == pytest.approx(float(change.norm()), rel=1e-4)
    assert up["start_norm"] == pytest.approx(float(before[UP].norm()), rel=1e-5)
    assert up["changed"] == pytest.approx(0.75, abs=1e-3)
    seen = before[UP].bfloat16() != (before[UP] + change).bfloat16()
    assert up["visible_in_bf16"] == float(seen.float().mean())
    assert 0.3 < up["visible_in_bf16"] < up["changed"]
    assert down["changed"] > 0.5
    assert down["visible_in_bf16"] < 0.01  # below the rounding of bf16
    assert up["random_walk"] is None
    totals = {one["module"]: one for one in result.rows}
    assert totals["all"]["norm"] == pytest.approx(math.hypot(up["norm"], down["norm"]))
    assert totals["up_proj"]["stable_rank"] == pytest.approx(up["stable_rank"])
    assert "q_proj" not in totals  # it did not change
    few = analyze("deltas", [changed(start, tmp_path / "few", up=change)], start=start)
    assert [list(one.x) for one in few.charts[0].series] == [[1]]  # 0 is on no log axis
    lost = changed(start, tmp_path / "lost", up=torch.tensor(math.nan))
    assert f"{UP} has NaN" in refusal(analyze, "deltas", [lost], start=start)
    by_layer = analyze("deltas", [end], start=start, settings={"layers": "true"})
    assert [one["module"] for one in by_layer.rows if isinstance(one["module"], int)] == [0, 1]
    assert by_layer.table[2][:2] == ["end", "1"]
    narrow = analyze("deltas", [end], start=start, settings={"spectrum_width": 63}).values
    assert "alpha_after" in {*up} - {*narrow["tensors"]["end"][UP]}


def test_pieces_of_tensors_make_the_same_deltas(start, tmp_path, monkeypatch):
    ends = [changed(start, tmp_path / f"{s}", up=noise(96, 64, seed=s) * 0.01) for s in (1, 2)]
    whole = [analyze(what, ends, start=start) for what in ("deltas", "cosine")]
    monkeypatch.setattr("germline.analysis.weights.CHUNK", 2 * 7 * 64)
    again = [analyze(what, ends, start=start) for what in ("deltas", "cosine")]
    up, expected = (some[0].values["tensors"]["1"][UP] for some in (again, whole))
    assert up == pytest.approx(expected)
    row, expected = (some[1].rows[-1] for some in (again, whole))
    assert row["overlap"] == expected["overlap"]
    assert row["cosine"][0] == pytest.approx(expected["cosine"][0])


def test_the_norm_of_a_run_stands_beside_its_random_walk(toy):
    directory = RunDirectory.open(toy)
    walk: Any = walked([entry.update for entry in directory.journal.read()])[-1]
    row = next(one for one in analyze("deltas", [toy]).rows if one["module"] == "all")
    masters: Any = load_engine(directory).weights
    units = [masters.units[i.name] * math.sqrt(math.prod(i.shape)) for i in masters.searched]
    expected = walk * math.hypot(*units)
    assert row["random_walk"] == pytest.approx(expected)
    assert row["norm"] == pytest.approx(expected, rel=0.1)


def test_masks_of_two_runs_overlap(start, tmp_path):
    first, second = torch.zeros(96, 64), torch.zeros(96, 64)
    first[:48] = second[24:72] = 1.0
    ends = [changed(start, tmp_path / n, up=c) for n, c in (("a", first), ("b", second))]
    row = next(one for one in analyze("cosine", ends, start=start).rows if one["module"] == "all")
    assert row["overlap"] == pytest.approx(24 / 72)
    assert row["overlap_by_chance"] == pytest.approx(0.25 / 0.75)


@pytest.mark.parametrize("sign", [1, -1, 0])
def test_the_cosine_of_known_changes(sign, start, tmp_path):
    change, other = noise(96, 64), noise(96, 64, seed=1)
    other -= change * (change * other).sum() / change.square().sum()
    ends = [
        changed(start, tmp_path / "a", up=change),
        changed(start, tmp_path / "b", up=change * 3 * sign if sign else other),
    ]
    result = analyze("cosine", ends, start=start)
    pair = next(one for one in result.rows if one["module"] == "all")
    cosine, (low, _) = pair["cosine"]
    assert result.values["pairs"] == [{"pair": ["a", "b"], "cosine": cosine}]
    assert cosine == pytest.approx(sign, abs=1e-5)
    assert math.isnan(low)  # of one tensor
    assert pair["chance"] == pytest.approx(1 / math.sqrt(96 * 64))


def test_a_source_without_a_change_is_noted(start, tmp_path):
    end = changed(start, tmp_path / "end", up=noise(96, 64))
    result = analyze("cosine", [start, start, end, end], start=start)
    (pair,) = (one for one in result.rows if one["module"] == "all")
    assert (pair["pairs"], pair["cosine"][0]) == (1, pytest.approx(1))
    unchanged = [f"{start} ({n}) has the weights of its start: nothing changed" for n in (1, 2)]
    assert result.notes == unchanged
    result = analyze("deltas", [start, end], start=start)
    assert result.notes[0] == f"{start.name} has the weights of its start: nothing changed"
    assert {one["source"] for one in result.rows} == {"end"}


def test_generations_of_one_run_are_compared(toy, tmp_path):
    result = analyze("cosine", [toy], generations=[3, 7, 11], out=tmp_path)
    pairs = {tuple(one["pair"]): one["cosine"] for one in result.values["pairs"]}
    assert [*pairs] == [("run@3", "run@7"), ("run@3", "run@11"), ("run@7", "run@11")]
    assert pairs["run@3", "run@11"] < min(pairs["run@3", "run@7"], pairs["run@7", "run@11"])
    assert (tmp_path / "cosine.png").stat().st_size > 5000
    with pytest.raises(GermlineError, match="at least 2 sources or generations, found 1"):
        analyze("cosine", [toy])


def test_the_statistics_of_known_paths():
    equal = path_statistics(np.ones((9, 9)))
    assert (equal["straightness"], equal["alignment"]) == pytest.approx((1, 1))
    assert equal["learned"] == pytest.approx(1 - 1 / 9)
    assert equal["1st_direction"] == pytest.approx(1)
    walk = path_statistics(np.eye(400) * 4)
    assert (walk["straightness"], walk["path"]) == pytest.approx((1 / 20, 800))
    assert (walk["learned"], walk["alignment"]) == pytest.approx((0, 0))
    assert (walk["1st_direction"], walk["2nd"]) == pytest.approx((0.608, 0.152), abs=0.01)
    assert path_statistics(np.array([[1.0, -1.0], [-1.0, 1.0]]))["learned"] is None  # and back
    assert path_statistics(np.diag([0.0, 4.0, 0.0]))["steps"] == 1
    with pytest.raises(GermlineError, match="no update moved"):
        path_statistics(np.zeros((3, 3)))


@pytest.mark.parametrize(
    "space", [("space=full",), ("space=low_rank",), ("space=lora",), ADAM_FULL]
)
def test_the_path_of_a_run_ends_at_its_weights(space, tmp_path, monkeypatch):
    path = run(tmp_path / "run", *space)
    directory = RunDirectory.open(path)
    first, last = ({**load_engine(directory, generation=g).weights.state()} for g in (-1, 3))
    names = [name for name in first if not name.endswith((".m", ".v"))]
    net = math.hypot(*(float((last[name] - first[name]).norm()) for name in names))
    (row,) = (result := analyze("trajectory", [path])).rows
    assert (row["net"], row["steps"]) == (pytest.approx(net, rel=1e-4), 4)
    assert result.table[0][:2] == ["run", "steps"]
    # After gradients, which seeds cannot repeat, the steps are those between snapshots.
    monkeypatch.setattr("germline.analysis.changes.follows_gradients", lambda _: True)
    (row,) = analyze("trajectory", [path]).rows
    assert (row["net"], row["steps"]) == (pytest.approx(net, rel=1e-4), 2)


def test_a_sample_of_the_numbers_has_nearly_the_same_path(toy, monkeypatch):
    (whole,) = analyze("trajectory", [toy]).rows
    monkeypatch.setattr("germline.analysis.changes.NUMBERS", 1 << 14)
    (part,) = analyze("trajectory", [toy]).rows
    assert part["net"] == pytest.approx(whole["net"], rel=0.15)
    assert part["net"] != whole["net"]


def test_an_interrupted_analysis_goes_on(start, tmp_path, monkeypatch):
    end = changed(start, tmp_path / "end", up=noise(96, 64))
    measure: Any = changes._measure
    measured: list[str] = []

    def interrupted(one, name, *settings):
        if len(measured) == 5:
            raise KeyboardInterrupt
        measured.append(name)
        return measure(one, name, *settings)

    monkeypatch.setattr("germline.analysis.changes._measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        analyze("deltas", [end], start=start, out=tmp_path / "out")
    with next((tmp_path / "out").glob("deltas-*.jsonl")).open("a") as file:
        file.write('{"key": "torn')
    measured.append("")
    resumed = analyze("deltas", [end], start=start, out=tmp_path / "out")
    names = [*load_file(start / "model.safetensors")]
    assert sorted(measured) == sorted(["", *names])
    assert resumed.values == analyze("deltas", [end], start=start).values
    changed(start, tmp_path / "other", up=noise(96, 64, seed=5))
    (tmp_path / "other" / "model.safetensors").replace(end / "model.safetensors")
    assert analyze("deltas", [end], start=start, out=tmp_path / "out").values != resumed.values


def test_the_merge_of_two_runs_is_written_for_mergekit(start, toy, tmp_path):
    ends = [changed(start, tmp_path / f"{s}", up=noise(96, 64, seed=s)) for s in (1, 2)]
    result = analyze("deltas", ends, start=start, out=tmp_path / "out", emit="mergekit")
    merge = yaml.safe_load((tmp_path / "out" / "merge.yaml").read_text())
    assert str(tmp_path / "out" / "merge.yaml") in result.notes[-1]
    assert merge["base_model"] == {"model": {"path": str(start)}}
    assert [one["model"]["model"]["path"] for one in merge["models"]] == [*map(str, ends)]
    assert {one["parameters"]["weight"] for one in merge["models"]} == {0.5}


MEMORY = """
import resource, sys
import germline.analysis.changes, germline.report.plots, transformers, scipy.linalg
from germline.analysis import analyze
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
analyze("deltas", [sys.argv[2]], start=sys.argv[1], settings={"spectrum_width": 0})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_model(tmp_path):
    values = noise(1024, 1024).bfloat16()
    for folder in ("start", "end"):
        (tmp_path / folder).mkdir()
        places: dict[str, str] = {}
        for shard in range(4):
            names = [f"model.layers.{shard * 16 + k}.mlp.up_proj.weight" for k in range(16)]
            shift = int(folder == "end")
            tensors = {name: values + shift + k for k, name in enumerate(names)}
            save_file(tensors, tmp_path / folder / f"model-{shard}.safetensors")
            places |= dict.fromkeys(tensors, f"model-{shard}.safetensors")
        index = json.dumps({"metadata": {}, "weight_map": places})
        (tmp_path / folder / "model.safetensors.index.json").write_text(index)
        (tmp_path / folder / "config.json").write_text("{}")
    done = python("-c", MEMORY, tmp_path / "start", tmp_path / "end")
    assert int(done.stdout) < 100_000  # kB; the pair has 256 MB in bf16


def test_the_command_prints_a_table_and_writes_files(toy, tmp_path):
    assert get_args(get_type_hints(command)["what"]) == (*ANALYSES,)
    words = ["analyze", "deltas", str(toy), "spectrum_width=0", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("source\tmodule\tnorm\trandom walk")
    assert {"deltas.json", "deltas.png"} <= {file.name for file in (tmp_path / "out").iterdir()}
    written = json.loads((tmp_path / "out" / "deltas.json").read_text())
    assert written["results"]["rows"][0]["source"] == "run"
    assert not (tmp_path / "out" / "deltas-weights").exists()
    for wrong, said in (("width=1", "spectrum_width"), ("spectrum_width=x", "spectrum_width")):
        failed = CliRunner().invoke(app, [*words[:3], wrong, "--out", str(tmp_path / "out")])
        assert (failed.exit_code, said in failed.stderr) == (2, True)


@pytest.mark.parametrize(
    ("labels", "methods"),
    [
        (["a/es/seed-0", "a/es/seed-1", "a/lora"], ["es", "es", "lora"]),
        (["a/es", "b/es"], ["a/es", "b/es"]),
        (["a/es/seed-0", "b/es/seed-0"], ["a/es", "b/es"]),
        (["a/es/seed-0@3", "a/es/seed-0@5"], ["es@3", "es@5"]),
        (["run@3", "run@5"], ["run@3", "run@5"]),
    ],
)
def test_only_run_seeds_of_one_folder_are_one_method(labels, methods):
    assert [*map(method_of, short_labels(labels))] == methods


def test_two_sources_have_two_labels():
    assert short_labels(["m/es/seed-0", "es"]) == ["es/seed-0", "es"]
    assert short_labels(["a/es", "b/es"]) == ["a/es", "b/es"]
    # Points of loaded models are kept by label.
    assert short_labels(["nano", "x/es", "nano"]) == ["nano (1)", "x/es (1)", "nano (2)"]


def test_pairs_of_seeds_are_together():
    pairs = pairs_by_method(["es", "es", "grpo"])
    assert pairs == {"es": [(0, 1)], "es and grpo": [(0, 2), (1, 2)]}


def test_a_line_has_the_mean_and_the_range_of_its_rows_or_one_interval():
    values = [(0, math.nan), (1, math.nan), (2, 0.25), (0, 0.5), (2, 0.75)]
    rows = [{"of": "all", "layer": layer, "cosine": value} for layer, value in values]
    (line,) = mean_lines(rows, "of", "layer", "cosine")
    assert (list(line.x), list(line.y)) == ([0, 2], [0.5, 0.5])
    assert (list(line.low), list(line.high)) == ([0.5, 0.25], [0.5, 0.75])
    (single,) = mean_lines([{"of": "a", "t": 0, "score": (0.5, (0.25, 1.0))}], "of", "t", "score")
    assert (list(single.y), list(single.low), list(single.high)) == ([0.5], [0.25], [1.0])
    assert not mean_lines(rows[2:4], "of", "layer", "cosine")[0].low


def sums(*changes):
    """Return the products of two sources, each a list of changes of tensors, and the sizes."""
    by_tensor = [np.stack(some) for some in zip(*changes, strict=True)]
    products = np.array([one @ one.T for one in by_tensor])
    return np.array([1.0 * one.shape[1] for one in by_tensor]), products


def test_the_chance_level_is_that_of_random_directions_on_other_tensors():
    generator, zero = np.random.default_rng(0), np.zeros(40)
    found = []
    for _ in range(2000):
        first = [generator.normal(size=40) for _ in range(3)]
        other = [generator.normal(size=40), zero, zero]
        sizes, products = sums(first, other)
        found.append(agreement(sizes, products, products))
    spread = float(np.std([one["cosine"][0, 1] for one in found]))
    assert found[0]["chance"][0, 1] == pytest.approx(math.sqrt(40 / (120 * 40)))
    assert spread == pytest.approx(found[0]["chance"][0, 1], rel=0.15)


def test_one_tensor_in_common_has_no_interval():
    one, zero = np.ones(4), np.zeros(4)
    assert math.isnan(interval(sums([one, one, one], [one, zero, zero])[1], [(0, 1)])[0])
    low, high = interval(sums([one, one, one], [one, one, zero])[1], [(0, 1)])
    assert math.sqrt(1 / 3) <= low < math.sqrt(2 / 3) < high < 1.001
