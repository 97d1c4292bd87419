"""The probe: sane sigmas told from broken ones, a rate from the edge, files that train takes."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from germline.cli.application import app
from germline.config import load_config
from germline.studies import probe as probing
from germline.studies import sigma_sweep
from germline.studies.probe import largest_rate, probe
from germline.studies.sigma_sweep import (
    SigmaProbe,
    find_edge,
    is_sane,
    open_probe_engine,
    probe_center,
    probe_sigma,
    sweep,
)
from germline.types import GermlineError
from tests.tiny import save_tiny
from tests.tiny_runs import zo_grpo_run
from tests.toy_runs import settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

CENTER = SigmaProbe(0.0, -4.0, 0.0, 0.0, None, 0.05, 0.0)
SANE = SigmaProbe(0.1, -4.1, 0.5, 0.5, 0.8, 0.1, 0.02)


@pytest.fixture(scope="module")
def config():
    return settings("graders.workers=1", "generations=6")


@pytest.fixture(scope="module")
def bench(config):
    with open_probe_engine(config, seed=0) as one:
        yield one


@pytest.fixture(scope="module")
def advice(config):
    return probe(config)


def levels(*divergences):
    """Return probes a decade apart, with these divergences and otherwise sane."""
    return [
        replace(SANE, sigma=10.0**place, divergence=one)
        for place, one in enumerate(divergences, start=-3)
    ]


def swept(bounds, start=0.2):
    """Return the sigmas of a sweep whose members are broken from the second bound on."""
    low, high = bounds
    measure = lambda s: replace(SANE, sigma=s, divergence=1.0 if not low <= s < high else 0.01)  # noqa: E731
    rows = [row.sigma for row in [*sweep(measure, start, CENTER)][-1]]
    assert rows == sorted(rows)
    return rows


def test_a_sweep_begins_at_the_calibrated_sigma_and_ends_where_members_are_broken_twice():
    assert swept((0, 1.0)) == [0.2, 0.63, 2.0, 6.3]
    assert swept((0, 0.05)) == [0.02, 0.063, 0.2], "down from a start where they are broken"
    assert len(swept((0, math.inf))) == len(swept((2, 1))) == sigma_sweep.MOST


@pytest.mark.parametrize(
    "change", [{"divergence": 0.11}, {"garbage": 0.16}, {"reward": -5.1}, {"divergence": math.inf}]
)
def test_members_that_diverge_write_garbage_or_collapse_are_not_sane(change):
    assert is_sane(SANE, CENTER)
    assert not is_sane(replace(SANE, **change), CENTER)


def test_members_that_are_all_alike_are_sane_whatever_their_sum_rounds_to():
    alike = replace(SANE, reward=math.nextafter(-4.0, -math.inf), spread=0.0)
    assert alike.reward < CENTER.reward
    assert is_sane(alike, CENTER)
    assert not is_sane(replace(alike, reward=-4.01), CENTER)


def test_the_edge_lies_where_the_line_through_the_logarithms_meets_the_bound_or_halfway():
    # From 0.001 at 0.01 to 10 at 0.1: the KL grows with the fourth power of sigma.
    assert find_edge(levels(1e-5, 0.001, 10.0), CENTER) == pytest.approx(0.01 * 100**0.25)
    sigma_probes = levels(0.001, 0.02, 0.03)
    assert find_edge(sigma_probes, CENTER) == pytest.approx(0.1 * math.sqrt(0.1 / 0.03))
    assert find_edge(levels(0.001, 0.001), CENTER) == pytest.approx(0.01 * math.sqrt(10))
    sigma_probes[2] = replace(sigma_probes[2], garbage=0.9)
    assert find_edge(sigma_probes, CENTER) == pytest.approx(math.sqrt(0.01 * 0.1))


def test_the_rate_takes_the_noise_of_the_whole_run_as_far_as_the_edge():
    largest = largest_rate(0.05, 0.2, 25)
    assert largest * 0.2 * math.sqrt(25) == pytest.approx(0.05)
    assert largest_rate(0.05, 0.2, 100) == largest / 2


def test_a_step_is_the_rms_of_what_the_update_moves_by_a_seed_that_no_run_has(config):
    strategy = config.strategy.model_copy(update={"sigma": 0.3, "learning_rate": 1.0})
    with open_probe_engine(config, seed=0) as one, open_probe_engine(config, seed=1) as other:
        assert len({one.config.seed, other.config.seed, config.seed}) == 3
        weights: Any = one.engine.weights
        tensors = weights.tensors
        before = {info.name: tensors[info.name].clone() for info in weights.searched}
        step = one.step(strategy)
        moved = torch.cat([(tensors[name] - old).flatten() for name, old in before.items()])
    assert step == pytest.approx(float(moved.square().mean().sqrt()), rel=1e-4)


def test_momentum_lets_a_step_count_for_all_it_will_push(config, advice):
    heavy = probe(load_config(config.model_dump(), ["strategy.optimizer.momentum=0.9"]))
    assert heavy.step == pytest.approx(10 * advice.step, rel=1e-4)


def test_probes_see_no_difference_at_tiny_sigmas_and_a_broken_model_at_large_ones(bench):
    center = probe_center(bench)
    tiny, large = (probe_sigma(bench, center, sigma) for sigma in (1e-6, 3.0))
    assert (center.divergence, center.spread, center.agreement) == (0.0, 0.0, None)
    assert tiny.divergence < 1e-6
    assert (tiny.informative, tiny.reward) == (0.0, center.reward)
    assert large.divergence > 1
    assert large.informative == 1


def test_the_advice_is_a_sane_sigma_and_a_rate_no_larger_than_the_rule_allows(advice):
    chosen = next(one for one in advice.sigma_probes if one.sigma == advice.sigma)
    assert is_sane(chosen, advice.center)
    assert advice.learning_rate is not None
    assert advice.step is not None
    assert advice.learning_rate <= 1.05 * advice.edge / (advice.step * math.sqrt(6))
    assert advice.sigma_probes[-1].sigma > advice.edge


class Stop:
    """A watcher of a probe, which is stopped at the first line that begins with some words."""

    def __init__(self, words, monkeypatch, *, interrupted):
        self.words, self.interrupted, self.lines = words, interrupted, []
        self.now = 0.0
        if not interrupted:
            monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def __call__(self, line):
        self.lines.append(line)
        if line.startswith(self.words):
            self.now = 1e9
            if self.interrupted:
                raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [True, False], ids=["Ctrl-C", "no time left"])
@pytest.mark.parametrize("words", ["sigma 1.2: ", "one generation"])
def test_a_stopped_probe_advises_by_what_it_measured(words, interrupted, config, monkeypatch):
    monkeypatch.setattr(probing, "first_sigma", lambda *_: 0.12)
    kept: list[Mapping[str, Any]] = []
    stop = Stop(words, monkeypatch, interrupted=interrupted)
    found, is_early = probe(config, watch=stop, keep=kept.append), words == "sigma 1.2: "
    assert found.sigma == 0.12
    assert found.learning_rate is not None
    assert stop.lines[0].startswith("cost: about 5 sigmas of 48 completions and a generation of")
    stopped = "it was interrupted" if interrupted else "--minutes ran out"
    assert (found.notes[-1:] or ("",))[0].startswith(stopped) == (is_early or interrupted)
    sigmas = [row["sigma"] for row in kept[-1]["sigma_probes"]]
    assert sigmas == [row.sigma for row in found.sigma_probes]


def test_a_probe_that_is_stopped_before_a_sigma_says_so(config, monkeypatch):
    with pytest.raises(GermlineError, match="it was interrupted before a sigma was measured"):
        probe(config, watch=Stop("base model", monkeypatch, interrupted=True))


def test_zo_grpo_gets_a_sigma_alone_from_texts_of_the_center(tmp_path):
    found = probe(zo_grpo_run(save_tiny(tmp_path / "model", "llama"), "graders.workers=1"))
    assert found.settings == {"sigma": found.sigma}
    assert found.step is None
    assert {row.reward for row in found.sigma_probes} == {found.center.reward}


def test_where_all_scores_are_equal_nothing_is_recommended(config, tmp_path, monkeypatch):
    equal = replace(CENTER, reward=0.125)
    monkeypatch.setattr(probing, "probe_center", lambda _bench: equal)
    other = replace(equal, informative=0.5, divergence=9.0)
    found = lambda _bench, _center, sigma: replace(  # noqa: E731
        equal if sigma < 0.5 else other, sigma=sigma
    )
    monkeypatch.setattr(probing, "probe_sigma", found)
    source = tmp_path / "toy.json.yaml"
    source.write_text(config.model_dump_json())
    out = tmp_path / "probe"
    shown = CliRunner().invoke(app, ["probe", str(source), "--out", str(out)])
    assert shown.exit_code != 0
    assert "same reward on every example (0.125 on average)" in shown.stderr
    assert not (out / "probe.yaml").exists()


def test_what_goes_by_earlier_generations_is_left_out_of_probes(config):
    running = ["strategy.antithetic=false", "strategy.baseline=running", "shaping=raw"]
    with open_probe_engine(load_config(config.model_dump(), running), seed=0) as one:
        assert probe_sigma(one, probe_center(one), 0.1).sigma == 0.1


def test_train_takes_the_file_by_the_command_that_is_printed(config, tmp_path):
    source = tmp_path / "toy.json.yaml"
    source.write_text(config.model_dump_json())
    words = ["probe", str(source), "generations=2", "--out", str(tmp_path / "probe")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    command = shown.stdout.strip().splitlines()[-1].split()
    assert command[:2] == ["germline", "train"]
    run = CliRunner().invoke(app, [*command[1:], "--out", str(tmp_path / "run"), "-q"])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "probe" / "probe.yaml").read_text().startswith("# Recommended by: germline ")
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    advised, used = (
        json.loads((tmp_path / "probe" / "probe.json").read_text()),
        recorded["strategy"],
    )
    assert recorded["record"]["edge"] == pytest.approx(advised["edge"], rel=0.01)
    assert {name: used[name] for name in advised["recommended"]} == advised["recommended"]


def test_a_strategy_without_a_learning_rate_gets_a_sigma_alone():
    small = ["space={kind: subspace, dimension: 6}", "strategy={kind: cma, population: 6}"]
    found = probe(settings("graders.workers=1", "generations=3", *small))
    assert found.settings == {"sigma": found.sigma}


@pytest.mark.parametrize(
    ("overrides", "minutes", "message"),
    [
        ([], -1.0, r"--minutes=-1 must be above 0"),
        (
            ["strategy={population: 6}", "method=randopt", "method.ensemble_size=2"],
            3.0,
            r"method.kind=randopt cannot be probed",
        ),
        (
            [
                "strategy={population: 1, antithetic: false, baseline: running}",
                "strategy.learning_rate=0.01",
                "shaping=raw",
            ],
            3.0,
            r"strategy.population=1 has no members to compare",
        ),
    ],
)
def test_what_cannot_be_probed_is_refused_by_name(config, overrides, minutes, message):
    changed = load_config(config.model_dump(), overrides)
    with pytest.raises(GermlineError, match=message):
        probe(changed, minutes=minutes)


def test_a_probe_refuses_settings_that_the_training_after_it_would_refuse():
    config = load_config({"task": {"kind": "wordle", "kl_coef": 0.1}, "model": "nano"})
    with (
        pytest.raises(GermlineError, match=r"task\.kl_coef=0\.1 is for single completions"),
        open_probe_engine(config, seed=0),
    ):
        pass
