"""KL to the start model: exact, against plain transformers; zero for who did not move."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import germline
from germline.config import Full, Lora, LowRank, Subspace
from germline.config.tasks import Conciseness
from germline.engines.toy import ToyEngine
from germline.evaluation.kl_divergence import (
    POSITIONS_AT_ONCE,
    KlDivergence,
    TextDivergence,
    measure_texts,
    text_divergence,
)
from germline.methods.kl_penalty import KlPenaltyTerm, divergence
from germline.methods.method import Method
from germline.methods.prompt_search import EvolutionStrategyMethod
from germline.optimizers import Sgd
from germline.protocols import TextScorer
from germline.record import RunDirectory
from germline.run.build_parts import build_run_parts, make_decoding, make_engine
from germline.run.inference import open_evaluation
from germline.spaces import make_space
from germline.tasks import make_task
from germline.types import Completion, Decoding, Example, SeedPerturbation, Update
from tests.small_runs import ROWS
from tests.tiny_engines import inprocess
from tests.toy_runs import SETTINGS, finish, journal, run, settings
from tests.wrappers import EngineWrapper, FleetWrapper

pytestmark = pytest.mark.usefixtures("graded_in_process")

SPACES: dict[str, Full | LowRank | Lora | Subspace] = {
    "low_rank": LowRank(rank=1),
    "full": Full(),
    "lora": Lora(rank=2, alpha=3, init_scale_b=0.5),
    "subspace": Subspace(dimension=4),
}
EXAMPLES = [
    Example(index, prompt, "", chat=False)
    for index, prompt in enumerate(("What is 1 + 2?", "fox", "the quick brown fox jumps."))
]
DECODING = Decoding(max_new_tokens=9, temperature=1.0)
MEMBERS = [
    SeedPerturbation(0, 0, direction, sign, 0.02) for direction in (0, 1) for sign in (1, -1)
]


def plainly(folder, prompt_ids, completion):
    """Return log-probabilities at a completion's tokens, by transformers alone, in fp64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).double().eval()
    ids = torch.tensor([[*prompt_ids, *completion.tokens]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt_ids) - 1 : -1]
    return logits.log_softmax(-1)


def by_hand(tuned, start, engine, examples, row):
    """Return equation (1) summed over each text, with both models as saved folders."""
    sums = []
    for example, completion in zip(examples, row, strict=True):
        prompt = engine.encoder.encode(example)
        p, q = (plainly(folder, prompt, completion) for folder in (tuned, start))
        sums.append(float((p.exp() * (p - q)).sum()))
    return sums


@pytest.mark.parametrize(
    ("model", "space"), [("qwen2", "low_rank"), ("qwen2", "lora"), ("gpt2", "subspace")]
)
def test_a_member_s_divergence_is_that_of_plain_transformers(model, space, tmp_path):
    engine = inprocess(model, SPACES[space])
    written = engine.generate(MEMBERS, EXAMPLES, DECODING)
    readings = measure_texts(engine.read, engine.read, MEMBERS, EXAMPLES, written)
    engine.save_model(tmp_path / "start")
    moved = inprocess(model, SPACES[space])
    # One member alone as an update: its direction's coefficient is sign times sigma.
    moved.apply(Update(0, 0, 0.02, 1.0, (0.0, -0.02)))
    moved.save_model(tmp_path / "moved")
    expected = by_hand(tmp_path / "moved", tmp_path / "start", engine, EXAMPLES, written[3])
    assert [one.divergence for one in readings[3]] == pytest.approx(expected, abs=1e-5)
    assert sum(expected) > 1e-3


@pytest.mark.parametrize("space", [None, *SPACES.values()], ids=["no space", *SPACES])
def test_who_did_not_move_has_diverged_by_nothing_at_all(space):
    engine = inprocess("qwen2", space)
    written = engine.generate([None, None], EXAMPLES, DECODING)
    for row in measure_texts(engine.read, engine.read, [None, None], EXAMPLES, written):
        assert [one.divergence for one in row] == [0.0] * len(EXAMPLES)


def test_surprise_is_the_cost_of_the_tokens_under_the_start_model(tmp_path):
    engine = inprocess("qwen2", LowRank(rank=1))
    engine.save_model(tmp_path)
    written = engine.generate(MEMBERS[:1], EXAMPLES, DECODING)
    (row,) = measure_texts(engine.read, engine.read, MEMBERS[:1], EXAMPLES, written)
    for example, completion, reading in zip(EXAMPLES, written[0], row, strict=True):
        log_q = plainly(tmp_path, engine.encoder.encode(example), completion)
        cost = -log_q.gather(-1, torch.tensor(completion.tokens)[:, None]).sum()
        assert reading.surprise == pytest.approx(float(cost), abs=1e-4)
        assert reading.tokens == len(completion.tokens)


def test_many_texts_are_read_in_pieces_with_the_same_result():
    engine = inprocess("qwen2", LowRank(rank=1))
    long = replace(DECODING, max_new_tokens=40)
    many = [replace(EXAMPLES[n % 3], index=n) for n in range(POSITIONS_AT_ONCE // 40 + 3)]
    written = engine.generate(MEMBERS[:2], many, long)
    together = measure_texts(engine.read, engine.read, MEMBERS[:2], many, written)
    assert [len(row) for row in together] == [len(many)] * 2
    alone = measure_texts(engine.read, engine.read, MEMBERS[1:2], many[-1:], [written[1][-1:]])
    assert together[1][-1].divergence == pytest.approx(alone[0][0].divergence, abs=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_the_toy_engine_reads_what_it_wrote_as_it_wrote_it(space):
    engine = ToyEngine(make_space(SPACES[space], 0), Sgd())
    greedy = replace(DECODING, temperature=0.0)
    written = engine.generate(MEMBERS, EXAMPLES, greedy)
    for logits, texts in zip(engine.read(MEMBERS, EXAMPLES, written), written, strict=True):
        for one, text in zip(logits, texts, strict=True):
            assert tuple(one.argmax(-1).tolist()) == text.tokens
    assert measure_texts(engine.read, engine.read, MEMBERS, EXAMPLES, written)[0][0].divergence > 0
    assert isinstance(engine, TextScorer)


def test_readings_together_are_sums_over_texts_and_means_over_tokens():
    readings = [TextDivergence(3.0, 2.0, 2, 100), TextDivergence(1.0, 6.0, 6, 100)]
    found = KlDivergence.of(readings)
    assert (found.per_token, found.per_text, found.texts, found.tokens) == (0.5, 2.0, 2, 8)
    assert found.standard_error == pytest.approx(1.0)
    assert found.perplexity == pytest.approx(math.e)
    assert math.isnan(KlDivergence.of(readings[:1]).standard_error)
    assert KlDivergence.of([TextDivergence(1.0, 1e6, 2, 100)]).perplexity == math.inf


def test_a_text_is_improbable_when_a_token_costs_more_than_half_a_blind_guess():
    half = math.log(100) / 2
    assert not TextDivergence(0.0, 3 * half - 0.01, 3, 100).improbable
    assert TextDivergence(0.0, 3 * half + 0.01, 3, 100).improbable
    assert TextDivergence(0.0, math.nan, 3, 100).improbable


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "toy", "strategy.learning_rate=0.5")


def test_a_run_is_compared_with_its_own_start(trained):
    config = RunDirectory.open(trained).config
    far, texts = open_evaluation(str(trained), limit=6).measure_kl()
    tuned, start = make_engine(config), make_engine(config)
    for entry in RunDirectory.open(trained).journal.read():
        tuned.apply(entry.update)
    task = make_task(config.task)
    sampling_noise = replace(make_decoding(config, task), noise_stream="held out")
    examples = task.examples("test")[:6]
    written = tuned.generate([None], examples, sampling_noise)
    assert isinstance(tuned, TextScorer)
    assert isinstance(start, TextScorer)
    expected = KlDivergence.of(measure_texts(tuned.read, start.read, [None], examples, written)[0])
    assert far.per_text == pytest.approx(expected.per_text, rel=1e-5)
    assert far.per_text > 0.01
    assert (far.texts, texts["texts"]) == (6, 6)


def test_no_divergence_is_negative():
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    written = Completion("", (0,) * 40, "length", 1)
    nearly = logits * (1 + 1e-7)
    assert all(
        text_divergence(nearly[:n], logits[:n], replace(written, tokens=(0,) * n)).divergence >= 0
        for n in range(1, 41)
    )


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
