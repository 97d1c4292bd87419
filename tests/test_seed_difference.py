"""Two configs with several run seeds each: the difference of their means, and what it decides."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from germline.cli.application import app
from germline.config import load_config
from germline.evaluation.held_out import score_of_values
from germline.evaluation.statistics import seed_difference
from germline.record import RunDirectory
from germline.record.run_paths import counted_seeds
from tests.documented_fields import field_tables, undocumented
from tests.synthetic_runs import BATCH, DIGEST, record

ROOT = Path(__file__).parent.parent
LOW, HIGH = (0.30, 0.31, 0.29, 0.32, 0.28), (0.40, 0.42, 0.41, 0.42, 0.35)


def train(
    folder: Path,
    ends: Mapping[int, float],
    batch_size: int,
    *,
    higher_is_better: bool = True,
    generations: int = 1,
    examples: int = 2,
) -> Path:
    """Write a folder of run seeds of which each has a score before and one after training."""
    folder.mkdir()
    (folder / "seeds.json").write_text(json.dumps({"seeds": list(ends), "config": {}}))
    settings = {"task": "arithmetic", "batch_size": batch_size, "generations": generations}
    for seed, end in ends.items():
        config = load_config({**settings, "seed": seed})
        run = RunDirectory.create(folder / f"seed-{seed}", config, DIGEST, threads=1)
        for generation, mean in enumerate((0.1, end)):
            if generation:
                run.write(record(0), BATCH)
            values = [mean] * examples
            score = score_of_values(generation, "exact", values, higher_is_better=higher_is_better)
            run.write_held_out(score, [], BATCH)
    return folder


def report(*words: object) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def by_seed(values: tuple[float, ...]) -> dict[int, float]:
    return dict(enumerate(values))


def test_the_interval_of_few_seeds_covers_what_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for values in rng.normal(size=(1000, 2, 4)):
        low, high = seed_difference(*map(by_seed, values)).interval or (math.nan, math.nan)
        covered += low < 0 < high
    assert 0.93 < covered / 1000 < 0.97


def test_means_over_seeds_are_printed_and_in_json(tmp_path: Path) -> None:
    first = train(tmp_path / "narrow", by_seed(LOW), 2)
    second = train(tmp_path / "wide", by_seed(HIGH), 3)
    words = (first, second, "--out", tmp_path / "page.html")
    lines = report(*words).splitlines()
    assert any(line.startswith("wide\texact\t5\t0.1 (all values equal)\t0.4 [") for line in lines)
    document = json.loads(report(*words, "--json"))
    tables = field_tables(ROOT / "docs/run-directory.md", "JSON output")
    assert undocumented(document, tables["report"], score=tables["score"]) == []
    assert [group["name"] for group in document["seed_groups"]] == ["narrow", "wide"]


def test_the_same_difference_in_every_seed_has_no_interval() -> None:
    for raised in (0.1, 0.0):
        found = seed_difference({0: 0.3, 1: 0.4}, {0: 0.3 + raised, 1: 0.4 + raised})
        assert found.mean == pytest.approx(-raised)
        assert found.interval is None


def test_a_seed_that_was_stopped_early_does_not_count(tmp_path: Path) -> None:
    folder = train(tmp_path / "a", by_seed((0.3, 0.4)), 2)
    config = load_config({"task": "arithmetic", "batch_size": 2, "generations": 1, "seed": 2})
    stopped = RunDirectory.create(folder / "seed-2", config, DIGEST, threads=1)
    untrained = score_of_values(0, "exact", [0.9, 0.9], higher_is_better=True)
    stopped.write_held_out(untrained, [], BATCH)
    (folder / "seeds.json").write_text(json.dumps({"seeds": [0, 1, 2], "config": {}}))
    said = report(folder, "--out", tmp_path / "page.html")
    assert "a\texact\t2\t0.1\t0.35\t0.35\n" in said
    assert "Seeds of a that do not count, as their training has not ended: 2 (" in said
    (group,) = json.loads(report(folder, "--out", tmp_path / "page.html", "--json"))["seed_groups"]
    assert group["over_seeds"]["end"]["mean"] == pytest.approx(0.35)
    assert [row["seed"] for row in group["results"]] == [0, 1]
    assert counted_seeds([True, False, False], [16, 3, 0]) == [0]
    assert counted_seeds([False, False, False], [0, 3, 5]) == [1, 2]  # until one has ended


@pytest.mark.parametrize("seeds", [(0, 1), (5, 6)])
def test_equal_means_differ_by_nothing_and_not_by_rounding(seeds: tuple[int, int]) -> None:
    one, other = {0: 0.34, 1: 0.34}, dict(zip(seeds, (0.36, 0.32), strict=True))
    assert seed_difference(one, other).mean == 0
    assert seed_difference(one, {seed: value - 1e-9 for seed, value in other.items()}).mean > 0
