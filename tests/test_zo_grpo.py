"""Zeroth-order GRPO: its coefficients, the rows that are scored, the step, and whole runs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import germline
from germline.config import load_config
from germline.fleet.local_fleet import LocalFleet
from germline.methods.group_advantages import draw_rows, group_advantages, mean_rewards
from germline.methods.policy_gradient import AdvantageRow, PolicyGradient
from germline.methods.zo_grpo import (
    ZerothOrderGrpoMethod,
    change_without_own_part,
    rate_of_kl,
)
from germline.record import RunDirectory
from germline.report.html_page import write_report
from germline.report.run_facts import RunFacts
from germline.run import build_run_parts
from germline.run.load_run import load_engine
from germline.run.model_card import model_card
from germline.types import GermlineError, Update
from tests.tiny import save_tiny
from tests.toy_runs import finish, journal, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

TOY = ("method=zo_grpo", "strategy.learning_rate=auto", "method.rows_per_pair=5")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model"))


def config(model, *overrides):
    values = {
        "model": str(model),
        "task": {"kind": "conciseness", "max_new_tokens": 5},
        "method": {"kind": "zo_grpo", "group_size": 4},
        "space": "full",
        "strategy": {"population": 8, "sigma": 0.0005},
        "engine": {"dtype": "float32"},
        "batch_size": 3,
        "generations": 3,
        "held_out": {"every": 2, "examples": 2},
        "record": {"snapshot_every": 2, "tensorboard": False, "figure_every": 1000},
    }
    return load_config(values, overrides)


def one_generation(parts):
    """Return what the method evaluated in generation 0, and what it learned."""
    population = parts.strategy.ask(0)
    evaluated = parts.method.evaluate(
        parts.strategy, parts.fleet, population, parts.batch(0), parts.decoding_of(0)
    )
    learned = parts.method.learn(parts.strategy, parts.shape, population, evaluated)
    return population, evaluated, learned


def test_the_difference_of_a_pair_is_sigma_times_the_slope_of_the_policy_gradient_objective(model):
    with build_run_parts(config(model)) as parts:
        population, evaluated, _ = one_generation(parts)
        assert isinstance(parts.fleet, LocalFleet)
        engine: Any = parts.fleet.engine  # in this process
        batch = parts.batch(0)
        advantages = group_advantages(evaluated.rollouts.rewards, "group")
        rows = [
            AdvantageRow(None, batch[place], rollout.completion, advantages[rollout.member, place])
            for rollout in evaluated.rollouts.rollouts
            for place, example in enumerate(batch)
            if example.index == rollout.example
        ]
        gradient = PolicyGradient().of(engine, [row for row in rows if row.advantage], len(batch))
        halves = evaluated.members.rewards.mean(axis=1)
        for pair, (plus, minus) in enumerate(zip(halves[0::2], halves[1::2], strict=True)):
            member = population.members[2 * pair]
            slope = sum(
                float((gradient[info.name] * engine.weights.displacements([member], info)[0]).sum())
                for info in engine.weights.searched
            )
            assert (plus - minus) / 2 == pytest.approx(slope, rel=0.02)


def test_a_small_update_moves_what_the_center_writes_next_by_the_divergence_it_aims_at(model):
    ours = ("method.step_kl=1e-5", "batch_size=12", "strategy.population=32")
    with build_run_parts(config(model, *ours)) as parts:
        _, _, learned = one_generation(parts)
        batch = parts.batch(1)
        samples = parts.fleet.evaluate_center(
            batch, replace(parts.decoding_of(1), temperature=1.0), 4
        )
        examples = {example.index: example for example in batch}
        asked = [examples[rollout.example] for rollout in samples.rollouts]
        written = [rollout.completion for rollout in samples.rollouts]
        (before,) = parts.fleet.score([None], asked, written)
        parts.fleet.apply(learned.update)
        (after,) = parts.fleet.score([None], asked, written)
    change = np.concatenate(after) - np.concatenate(before)
    assert np.mean(change**2) / 2 == pytest.approx(learned.metrics["step_kl"], rel=0.5)


def test_advantages_leave_out_missing_rewards_and_ties():
    rewards = np.array([[1.0, 0.0, 5.0], [0.0, 0.0, np.nan], [1.0, 0.0, 7.0]])
    plain = group_advantages(rewards, "none")
    assert plain.T.tolist() == [
        pytest.approx([1 / 3, -2 / 3, 1 / 3]),
        [0.0, 0.0, 0.0],
        [-1.0, 0.0, 1.0],
    ]
    by_group = group_advantages(rewards, "group")
    assert by_group[:, 2].tolist() == pytest.approx([-math.sqrt(0.5), 0.0, math.sqrt(0.5)])
    known = rewards[~np.isnan(rewards)]
    assert group_advantages(rewards, "batch") == pytest.approx(plain / known.std(ddof=1))


def test_drawn_rows_weigh_on_average_what_all_rows_weigh():
    weights = np.array([0.5, 0.0, -2.0, 0.1, -0.4, 3.0])
    mean = np.zeros(6)
    draws = [draw_rows(weights, 3, (i + 0.5) / 1000) for i in range(1000)]
    for drawn in draws:
        assert len(drawn) <= 3
        for row, weight in drawn.items():
            mean[row] += weight / 1000
    assert mean == pytest.approx(weights, abs=0.01)


def test_all_rows_are_scored_as_they_are_where_they_are_few():
    assert draw_rows(np.array([0.0, 2.0, -1.0]), 2, 0.3) == {1: 2.0, 2: -1.0}


def test_the_rate_follows_from_the_change_of_the_log_probabilities():
    update = Update(0, 0, 0.1, 1.0, (3.0, -4.0))
    slopes = np.eye(2)
    # The mean square of (3, -4) is 12.5, so s = sqrt(2 x 0.25 / 12.5) = 0.2.
    assert rate_of_kl(update, np.array([3.0, -4.0]), slopes, 0.25) == pytest.approx(0.1 * 0.2)
    assert rate_of_kl(update, np.zeros(0), slopes[:, :0], 0.25) == 0.0


def test_a_change_that_looks_like_0_by_chance_gives_the_step_of_random_coefficients():
    update = Update(0, 0, 0.1, 1.0, (3.0, -4.0))
    # The coefficients have the square 25, and the slopes the mean square 1 / 2.
    assert rate_of_kl(update, np.array([0.0, 0.01]), np.eye(2), 0.25) == pytest.approx(0.1 * 0.2)


def test_a_step_is_at_most_two_sigmas():
    update = Update(0, 0, 0.1, 1.0, (3.0, -4.0))
    rate = rate_of_kl(update, np.array([3.0, -4.0]), np.eye(2), 1e6)
    assert rate * 5 / 0.1 == pytest.approx(2.0)


def test_the_mean_rewards_of_samples_are_those_of_the_rewards_that_are_known():
    rewards = np.array([[1.0, np.nan], [0.0, 0.0], [np.nan, np.nan]])
    assert mean_rewards(rewards)[:2].tolist() == [1.0, 0.0]
    assert np.isnan(mean_rewards(rewards)[2])


@pytest.mark.parametrize("size", [1e300, 1e-320])
def test_huge_and_tiny_rewards_have_the_advantages_of_others(size):
    rewards = np.array([[1.0], [0.0], [1.0], [-1.0]])
    assert group_advantages(rewards * size, "group") == pytest.approx(
        group_advantages(rewards, "group")
    )


def test_a_token_is_changed_by_the_other_examples_alone():
    parts = np.array([[1.0, 2.0], [3.0, -1.0]])  # two directions, two examples
    slopes = np.array([[1.0, 0.0], [0.0, 1.0]])
    places = np.array([0, 1])
    # The coefficients are twice the sum of the parts; each token gets those of the other example.
    change = change_without_own_part(np.array([6.0, 4.0]), parts, slopes, places)
    assert change.tolist() == pytest.approx([2 * 2.0 * 2, 2 * 3.0 * 2])
    alone = change_without_own_part(np.array([6.0, 4.0]), parts, slopes, np.array([0, 0]))
    assert alone.tolist() == [6.0, 4.0]


def test_only_the_center_generates():
    with build_run_parts(settings(*TOY)) as parts:
        population, evaluated, learned = one_generation(parts)
    assert evaluated.rollouts.rewards.shape == (8, 4)
    assert len(evaluated.rollouts.rollouts) == 8 * 4
    rollouts = evaluated.rollouts.rollouts
    texts = {one.completion.text for one in rollouts if one.example == rollouts[0].example}
    assert len(texts) > 1
    assert len(learned.utilities) == len(population) == 6
    assert learned.metrics["rows_scored"] == 5
    assert len(learned.mean_rewards) == 8


def test_samples_have_the_temperature_of_the_method_and_held_out_completions_the_tasks():
    cold = settings(*TOY, "method.temperature=0.01", "task.temperature=1")
    with build_run_parts(cold) as parts:
        _, evaluated, _ = one_generation(parts)
        assert parts.decoding.temperature == 1
    rollouts = evaluated.rollouts.rollouts
    assert len({one.completion.text for one in rollouts if one.example == rollouts[0].example}) == 1


def test_members_without_pairs_are_compared_with_the_center():
    with build_run_parts(settings(*TOY, "strategy.antithetic=false")) as parts:
        _, evaluated, learned = one_generation(parts)
    assert len(evaluated.slopes) == 6
    assert any(learned.update.coefficients)


def always_the_same(completion, example):
    return 1.0


def test_rewards_that_all_tie_change_nothing_and_nothing_is_scored(tmp_path):
    ours = settings(*TOY, "strategy.sigma=auto")
    training = germline.train(ours, tmp_path / "run", reward=always_the_same)
    directory = RunDirectory.open(finish(training))
    assert {entry.digest for entry in directory.journal.read()} == {directory.base_digest}
    assert len({row["sigma"] for row in directory.generations()}) == 1  # it would not help to grow
    for row in directory.generations():
        assert row["groups_without_signal"] == 1
        assert row["rows_scored"] == 0
        assert row["zero_signal"]


def test_truncated_completions_can_be_left_out():
    masked = settings(*TOY, "method.mask_truncated_completions=true", "task.max_new_tokens=2")
    with build_run_parts(masked) as parts:
        _, evaluated, _ = one_generation(parts)
        method = parts.method
        assert isinstance(method, ZerothOrderGrpoMethod)
        advantages = group_advantages(evaluated.rollouts.rewards, "group")
        weights = method._weights(evaluated.rollouts, advantages)
    cut = [one.completion.finish == "length" for one in evaluated.rollouts.rollouts]
    assert any(cut)
    assert not weights[np.reshape(cut, weights.shape)].any()
    assert evaluated.metrics["truncated"] == pytest.approx(np.mean(cut))


SPACES = {
    "full": (),
    "low_rank": (),
    "lora": ("space.rank=2",),
    "subspace": ("space.dimension=8",),
    "singular": (),
}


@pytest.mark.parametrize("space", SPACES)
def test_a_run_resumes_and_replays_to_the_same_bits(model, tmp_path, space):
    ours = (f"space={space}", *SPACES[space], "strategy.sigma=auto", "method.rows_per_pair=6")
    whole = finish(germline.train(config(model, *ours), tmp_path / "whole"))
    part = stopped_after(germline.train(config(model, *ours), tmp_path / "part"), 1)
    finish(germline.resume(part))
    assert journal(part) == journal(whole)
    directory = RunDirectory.open(whole)
    engine = load_engine(directory, directory.config, generation=1)
    assert engine.weights.digest() == directory.journal.read()[1].digest


def test_two_engines_in_processes_give_the_journal_of_one(tmp_path):
    one = finish(germline.train(settings(*TOY), tmp_path / "one"))
    two = finish(germline.train(settings(*TOY, "fleet.engines=2"), tmp_path / "two"))
    assert journal(one) == journal(two)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("method.temperature=0", "method.temperature"),
        ("method.group_size=1", "method.group_size"),
        ("strategy.kind=cma", "strategy.kind=cma"),
        ("strategy.sigma={kind: plateau, start: 0.1}", "strategy.sigma.kind=plateau"),
        ("prompt_search.temperature=[0.5, 1]", "prompt_search"),
        ("batch_size=1", "batch_size=1"),
    ],
)
def test_what_the_method_cannot_use_is_refused_by_name(setting, named):
    with pytest.raises(GermlineError, match=named.replace(".", r"\.")):
        load_config({"method": "zo_grpo"}, [setting])


def test_a_quorum_is_refused_as_all_members_score():
    with pytest.raises(GermlineError, match=r"fleet\.quorum"):
        load_config({"method": "zo_grpo"}, ["fleet.engines=2", "fleet.quorum=0.5"])


def test_a_task_of_episodes_is_refused_before_a_model_is_loaded():
    with pytest.raises(GermlineError, match="wordle"):
        build_run_parts(load_config({"method": "zo_grpo", "task": "wordle"}))


def test_the_population_has_a_default_of_its_own_that_a_config_overrides():
    assert load_config({"method": "zo_grpo"}).strategy.population == 128
    assert load_config({"method": "zo_grpo"}, ["strategy.population=8"]).strategy.population == 8
    assert load_config({}).strategy.population == 32


def test_every_screen_counts_samples_of_the_center(tmp_path):
    run = finish(germline.train(settings(*TOY), tmp_path / "run"))
    directory = RunDirectory.open(run)
    facts = RunFacts(run)
    assert {row["best_member"] for row in directory.generations()} == {None}
    assert facts.batch_examples == 4
    assert "scoring, grading" in {part.name for part in facts.parts}
    write_report(run)
    text = (run / "report.html").read_text(encoding="utf-8")
    for words in ("8 × 4 rollouts", "best sample", "Completions of samples", "zo_grpo G = 8"):
        assert words in text
    for words in ("best member", "% of members", "Completions of members"):
        assert words not in text
    assert "8 samples of each" in model_card(directory, "run", "merged", 2)
