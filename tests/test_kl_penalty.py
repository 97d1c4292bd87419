"""The KL penalty: its estimators, what a reward loses by it, and where it is refused."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import germline
from germline.config.tasks import Conciseness
from germline.methods.kl_penalty import KlPenaltyTerm, divergence
from germline.methods.method import Method
from germline.methods.prompt_search import EvolutionStrategyMethod
from germline.protocols import TextScorer
from germline.record import RunDirectory
from germline.run.build_parts import build_run_parts, make_engine
from tests.small_runs import ROWS
from tests.toy_runs import SETTINGS, finish, journal, run, settings
from tests.wrappers import EngineWrapper, FleetWrapper

pytestmark = pytest.mark.usefixtures("graded_in_process")

COEF = "task.kl_coef=0.5"
MEMBER, START = [-0.1, -2.0, -0.5], [-0.3, -1.0, -0.5]


def grades(path):
    return [json.loads(line) for line in (path / "rollouts.jsonl").read_text().splitlines()]


def members_of(parts, population, batch, decoding):
    return parts.method.evaluate_members(parts.fleet, population, batch, decoding)


def center_of(parts, examples, decoding):
    return parts.method.evaluate_center_with_terms(parts.fleet, examples, decoding)


def evaluated(config, generation=0):
    with build_run_parts(config) as parts:
        population = parts.method.ask(generation)
        batch = parts.batch(generation)
        return population, batch, members_of(parts, population, batch, parts.decoding)


@pytest.mark.parametrize(
    ("estimator", "per", "expected"),
    [
        ("k1", "completion", 0.2 - 1.0 + 0.0),
        ("k1", "token", -0.8 / 3),
        ("k3", "completion", (math.exp(-0.2) + 0.2 - 1) + (math.exp(1) - 1 - 1)),
        ("k3", "token", (math.exp(-0.2) + 0.2 - 1 + math.exp(1) - 2) / 3),
    ],
)
def test_the_estimators(estimator, per, expected):
    chosen = Conciseness(kl_coef=1.0, kl_estimator=estimator, kl_per=per)
    assert divergence(MEMBER, START, chosen) == pytest.approx(expected, rel=1e-12)
    assert divergence(START, START, chosen) == 0.0
    assert divergence([], [], chosen) == 0.0


def test_a_reward_loses_the_divergence_of_the_member_that_wrote_the_completion():
    _, _, plain = evaluated(settings())
    population, batch, found = evaluated(settings(COEF))
    by_index = {example.index: example for example in batch}
    engine = make_engine(settings())
    assert isinstance(engine, TextScorer)
    for before, rollout in zip(plain.rollouts, found.rollouts, strict=True):
        written = rollout.completion
        assert written == before.completion
        example, tokens = by_index[rollout.example], list(written.tokens)
        p, q = (
            engine.read([who], [example], [[written]])[0][0].log_softmax(-1)[
                range(len(tokens)), tokens
            ]
            for who in (population.members[rollout.member], None)
        )
        d = (q - p).double().numpy()
        assert rollout.grade.parts["kl"] == pytest.approx(np.mean(np.exp(d) - d - 1), abs=1e-6)
        lost = before.grade.reward - rollout.grade.reward
        assert lost == pytest.approx(0.5 * rollout.grade.parts["kl"], abs=1e-9)
    rewards = [rollout.grade.reward for rollout in found.rollouts]
    assert found.rewards.ravel().tolist() == rewards
    assert max(rollout.grade.parts["kl"] for rollout in found.rollouts) > 0.01


def test_a_coefficient_of_0_reports_the_divergence_and_leaves_the_run_as_it_is(tmp_path):
    plain = run(tmp_path / "plain")
    reported = run(tmp_path / "reported", "task.kl_coef=0")
    assert journal(plain) == journal(reported)
    assert all("kl" not in row["parts"] for row in grades(plain))
    assert all(row["parts"]["kl"] >= 0 for row in grades(reported))
    assert all(row["parts"]["kl"] > 0 for row in RunDirectory.open(reported).generations())


@pytest.mark.parametrize("space", ["low_rank", "{kind: lora, init_scale_b: 1}"])
def test_the_center_is_penalized_too_and_is_at_0_before_the_first_update(space):
    with build_run_parts(settings(COEF, f"space={space}")) as parts:
        found = center_of(parts, parts.batch(0), parts.decoding)
    assert {rollout.grade.parts["kl"] for rollout in found.rollouts} == {0.0}


@pytest.mark.parametrize("method", [(), ("method=randopt", "strategy.learning_rate=auto")])
def test_held_out_scores_are_those_of_eval_without_the_penalty(method, tmp_path):
    path = run(tmp_path / "run", COEF, *method)
    recorded = RunDirectory.open(path).held_out()[-1].score
    score, _ = germline.evaluate(str(path), limit=recorded.n)
    for name in ("mean", "reward", "parts"):
        assert getattr(recorded, name) == getattr(score, name)


def test_the_start_of_a_fork_is_where_it_forked(tmp_path):
    first = run(tmp_path / "first")
    fork = germline.fork(first, 3, [COEF, "generations=1"], tmp_path / "fork")
    with fork._parts as parts:
        found = center_of(parts, parts.batch(0), parts.decoding)
    assert {rollout.grade.parts["kl"] for rollout in found.rollouts} == {0.0}


def test_lambda_and_the_penalty_are_parts_of_one_reward(tmp_path):
    task: dict[str, Any] = {
        "kind": "safe_alignment",
        "path": str(ROWS / "safe_alignment.jsonl"),
        "test_split": None,
        "scorers": {
            "reward": {"kind": "repetition"},
            "cost": {"kind": "length", "start": 0, "end": 9},
        },
    }
    task |= {"kl_coef": 3, "max_new_tokens": 8, "temperature": 1.0, "lambda_lr": 0.5}
    path = finish(germline.train(SETTINGS | {"task": task}, tmp_path / "run"))
    weights = [row["lambda"] for row in RunDirectory.open(path).generations()]
    for row in grades(path):
        parts = row["parts"]
        cost = weights[row["generation"]] * parts["cost"]
        assert row["reward"] == pytest.approx(-parts["reward"] - cost - 3 * parts["kl"])


def test_a_completion_is_read_after_the_prompt_that_its_member_had():
    config = settings(
        COEF, "task.temperature=0", 'prompt_search.template=["{prompt}","Say {prompt}"]'
    )
    engine = make_engine(config)
    with build_run_parts(config) as parts:
        method = parts.method
        assert isinstance(method, EvolutionStrategyMethod)
        population, batch = parts.method.ask(0), parts.batch(0)
        found = members_of(parts, population, batch, parts.decoding)
        by_index = {example.index: example for example in batch}
        for one in found.rollouts:
            variant = population.prompt_variants[one.member]
            (example,), _ = method.prompted([by_index[one.example]], parts.decoding, variant)
            p, q = (
                engine.log_probabilities([who], [example], [[one.completion]])[0][0]
                for who in (population.members[one.member], None)
            )
            assert one.grade.parts["kl"] == pytest.approx(divergence(p, q, config.task), abs=1e-6)
    assert len({*population.prompt_variants}) == 2


class Losing(FleetWrapper):
    def evaluate(self, population, batch, decoding):
        found = self.inner.evaluate(population, batch, decoding)
        rewards = found.rewards.copy()
        rewards[0, 0] = math.nan
        return replace(found, rollouts=found.rollouts[1:], rewards=rewards)


def test_what_cannot_be_measured_is_missing_and_never_0():
    config = settings(COEF)
    with build_run_parts(config) as parts:
        losing, batch = Losing(parts.fleet), parts.batch(0)
        found = parts.method.evaluate_members(losing, parts.method.ask(0), batch, parts.decoding)
        broken = KlPenaltyTerm(Broken(make_engine(config)), config.task)
        method = Method(parts.method.strategy, parts.method.shape, [broken])
        center = method.evaluate_center_with_terms(parts.fleet, batch, parts.decoding)
    assert np.isnan(found.rewards[0]).all()
    assert not np.isnan(found.rewards[1:]).any()
    reason = "kl: the divergence from the start model is not known"
    assert found.rollouts[0].grade.failure == reason
    assert np.isnan(center.rewards).all()
    assert all(math.isnan(one.grade.parts["kl"]) for one in center.rollouts)


class Broken(EngineWrapper):
    def log_probabilities(self, members, examples, completions):
        return [[[math.nan] * len(one.tokens) for one in row] for row in completions]
