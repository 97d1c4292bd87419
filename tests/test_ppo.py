"""PPO and fine-tuning on the best samples: their gradients, what they learn, and going on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import germline
from germline.checkpoint import list_snapshots
from germline.methods import es_sample_gd, policy_gradient
from germline.methods.es_sample_gd import AdvantageRow
from germline.methods.policy_gradient import Sample, SampledGradientMethod
from germline.methods.ppo import VALUE_HEAD, generalized_advantages, surrogate
from germline.methods.trl_policy_gradient import model_that_learns
from germline.record import RunDirectory
from germline.run import build_run_parts
from tests.slow_cases import mostly_slow
from tests.tiny_runs import one_generation, tiny_run
from tests.toy_runs import finish, journal, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

METHODS = mostly_slow(("ppo", "sft_on_best"), quick=["ppo"])


def config(model: Path, kind: str, *overrides: str):
    return tiny_run(
        model,
        *overrides,
        method={"kind": kind, "group_size": 4, "epochs": 2, "minibatches": 2, "rows": 4},
        strategy={"learning_rate": 0.001},
        generations=4,
    )


def on_letters(model: Path, kind: str, folder: Path, reward: Any, generations: int) -> RunDirectory:
    """Train on prompts that name a letter, and answers of one token."""
    training = germline.train(
        {
            "model": str(model),
            "task": {"max_new_tokens": 1},
            "space": "full",
            "method": {"kind": kind, "epochs": 4, "minibatches": 2},
            "strategy": {"learning_rate": 0.003},
            "batch_size": 8,
            "generations": generations,
            "held_out": {"every": 100, "examples": 1},
            "record": {"tensorboard": False},
        },
        folder,
        reward=reward,
        data=[{"prompt": f"Say {letter}."} for letter in "abcdefghij"],
    )
    return RunDirectory.open(finish(training))


# --- the loss


def brute_force(values: list[float], reward: float, gamma: float, weight: float) -> list[float]:
    """The exponentially weighted sum of the n-step returns, minus the value."""
    count = len(values)
    found = []
    for start in range(count):
        total = 0.0
        for later in range(start, count):
            after = values[later + 1] if later + 1 < count else 0.0
            delta = (reward if later == count - 1 else 0.0) + gamma * after - values[later]
            total += (gamma * weight) ** (later - start) * delta
        found.append(total)
    return found


VALUES = [0.3, -0.2, 0.7, 0.1]


@pytest.mark.parametrize(("gamma", "weight"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (1.0, 0.0)])
def test_advantages_are_the_weighted_sum_of_all_later_errors(gamma, weight):
    found = generalized_advantages(torch.tensor(VALUES), 2.0, gamma, weight)
    np.testing.assert_allclose(found, brute_force(VALUES, 2.0, gamma, weight), rtol=1e-5)


def test_advantages_are_those_of_torchrl():
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    after = torch.tensor([*VALUES[1:], 0.0])
    rewards = torch.tensor([0.0, 0.0, 0.0, 2.0])
    ends = torch.tensor([False, False, False, True])
    columns = [one[:, None] for one in (torch.tensor(VALUES), after, rewards, ends, ends)]
    expected, _ = functional.generalized_advantage_estimate(0.9, 0.5, *columns)
    found = generalized_advantages(torch.tensor(VALUES), 2.0, 0.9, 0.5)
    torch.testing.assert_close(found, expected[:, 0])


def test_with_lambda_1_and_no_value_every_token_has_the_reward():
    assert generalized_advantages(torch.zeros(3), 2.0, 1.0, 1.0).tolist() == [2.0, 2.0, 2.0]


def test_a_token_that_has_gone_far_enough_has_no_gradient():
    log_ratios = torch.tensor([0.5, -0.5, 0.5, -0.5, 0.0], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    gain, is_far = surrogate(log_ratios, advantages, 0.2)
    gain.sum().backward()
    ratios = log_ratios.detach().exp()
    assert is_far.tolist() == [True, False, False, True, False]
    torch.testing.assert_close(log_ratios.grad, torch.where(is_far, 0.0, ratios * advantages))


def first_gradient(
    parts: Any, monkeypatch: Any
) -> tuple[dict[str, torch.Tensor], Sequence[Sample]]:
    """The gradient of the first step of a generation, not applied, and its samples."""
    seen: list[dict[str, torch.Tensor]] = []
    monkeypatch.setattr(
        policy_gradient, "step_theta", lambda _engine, gradients, *_: seen.append(gradients)
    )
    _, _, learned = one_generation(parts)
    assert isinstance(parts.method, SampledGradientMethod)
    rows = parts.method.rows
    parts.method.apply(parts.fleet, learned.update)
    return seen[0], rows


ONE_STEP = ("method.epochs=1", "method.minibatches=1", "method.max_grad_norm=1e9")


def test_the_first_step_of_ppo_without_a_value_is_that_of_reinforce(model, monkeypatch):
    settings = (*ONE_STEP, "method.gae_lambda=1")
    with build_run_parts(config(model, "ppo", *settings)) as parts:
        found, rows = first_gradient(parts, monkeypatch)
        engine: Any = parts.fleet.engine  # type: ignore[attr-defined]
        rewards = np.array([row.reward for row in rows])
        lengths = np.array([len(row.completion.tokens) for row in rows])
        mean = np.average(rewards, weights=lengths)  # advantages are standardized over tokens
        std = np.sqrt(np.average((rewards - mean) ** 2, weights=lengths))
        weighted = [
            AdvantageRow(row.example, row.completion, float((row.reward - mean) / std))
            for row in rows
        ]
        expected = es_sample_gd.policy_gradient(engine, weighted, int(lengths.sum()))
    assert len(set(rewards)) > 2
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


def test_the_gradient_of_sft_is_that_of_the_likelihood_of_the_best(model, monkeypatch):
    with build_run_parts(config(model, "sft_on_best", *ONE_STEP)) as parts:
        found, rows = first_gradient(parts, monkeypatch)
        engine: Any = parts.fleet.engine  # type: ignore[attr-defined]
        count = sum(len(row.completion.tokens) for row in rows)
        equal = [AdvantageRow(row.example, row.completion, 1.0) for row in rows]
        expected = es_sample_gd.policy_gradient(engine, equal, count)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


ADAPTER = "space={kind: lora, rank: 2, alpha: 3, init_scale_b: 0.3, layers: 0-1}"


def test_the_first_step_of_ppo_compares_an_adapter_with_itself(model):
    with build_run_parts(config(model, "ppo", *ONE_STEP, ADAPTER)) as parts:
        update = one_generation(parts)[2].update
        parts.method.apply(parts.fleet, update)
        metrics = parts.method.metrics(update)
    assert metrics["backward_tokens"] > 0
    assert metrics["sampler_kl"] == pytest.approx(0, abs=1e-6)


def test_the_gradient_of_an_adapter_is_that_of_peft(model, monkeypatch):
    with build_run_parts(config(model, "sft_on_best", *ONE_STEP, ADAPTER)) as parts:
        found, rows = first_gradient(parts, monkeypatch)
        engine: Any = parts.fleet.engine  # type: ignore[attr-defined]
        peft, parameters = model_that_learns(engine)
        texts = [
            torch.tensor([[*engine.encoder.encode(row.example), *row.completion.tokens]])
            for row in rows
        ]
        with policy_gradient.tracked(parameters.values()):
            sums = []
            for row, text in zip(rows, texts, strict=True):
                new = len(row.completion.tokens)
                logits = peft(text).logits[0, -1 - new : -1]
                sums.append(policy_gradient.chosen_log_probs(logits, row.completion, 1.0))
            torch.cat(sums).mean().backward()
            expected = {name: one.grad for name, one in parameters.items()}
        with policy_gradient.adapter_applied(engine, policy_gradient.adapter_parameters(engine)):
            outputs = policy_gradient.token_outputs(engine, rows, 1.0)
    for one, other in zip(outputs, sums, strict=True):
        torch.testing.assert_close(one.log_probs, other.detach(), rtol=1e-4, atol=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", METHODS)
def test_an_adapter_is_trained_and_resumed_to_the_same_bits(model, kind, tmp_path):
    values = config(model, kind, "space={kind: lora, rank: 2, layers: 0-1}")
    whole = finish(germline.train(values, tmp_path / "whole"))
    part = stopped_after(germline.train(values, tmp_path / "run"), 3)
    list_snapshots(part / "snapshots")[-1].unlink()
    finish(germline.resume(part))
    assert journal(part) == journal(whole)
    assert len({one.digest for one in RunDirectory.open(whole).journal.read()}) > 1
    germline.export(whole, tmp_path / "adapter", form="adapter")
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", framework="pt") as file:
        assert all("lora_" in name for name in file.keys())  # noqa: SIM118


# --- what is learned from


REWARDS = np.array([[1.0, 5.0, 0.0, np.nan], [3.0, 5.0, np.nan, np.nan], [3.0, 5.0, 1.0, np.nan]])


@pytest.mark.parametrize(
    ("kind", "given", "selected"),
    [
        ("ppo", (), [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]),
        ("sft_on_best", (), [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]]),
        ("sft_on_best", ("method.threshold=3",), [[0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]),
    ],
)
def test_missing_rewards_are_left_out(model, kind, given, selected):
    with build_run_parts(config(model, kind, *given)) as parts:
        assert isinstance(parts.method, SampledGradientMethod)
        assert parts.method.selected(REWARDS).astype(int).tolist() == selected


@pytest.mark.parametrize("kind", METHODS)
def test_equal_rewards_teach_nothing(model, kind, tmp_path):
    run = on_letters(model, kind, tmp_path / "run", lambda _completion, _example: 0.5, 1)
    assert run.generations()[0]["zero_signal"]
    assert run.journal.read()[0].digest == run.base_digest


def bandit(completion: str, _example: Any) -> float:
    """Half of the arms are right."""
    return float(sum(completion.encode()) % 2)


@pytest.mark.parametrize("kind", METHODS)
def test_a_bandit_is_learned(model, kind, tmp_path):
    run = on_letters(model, kind, tmp_path / "run", bandit, 30)
    means = [row["fitness"]["mean"] for row in run.generations()]
    assert means[0] < 0.7 < 0.95 < means[-1]


# --- the run


@pytest.fixture(scope="module", params=METHODS)
def whole(request, model, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, finish(germline.train(config(model, request.param), path))


def test_the_value_head_and_its_moments_are_in_snapshots_and_in_no_export(whole, tmp_path):
    kind, path = whole
    heads = {VALUE_HEAD, f"{VALUE_HEAD}.m", f"{VALUE_HEAD}.v"} if kind == "ppo" else set()
    with safe_open(list_snapshots(path / "snapshots")[-1], framework="pt") as file:
        names = set(file.keys())
    assert {name for name in names if name.startswith("method.")} == heads
    germline.export(path, tmp_path / "model")
    with safe_open(tmp_path / "model" / "model.safetensors", framework="pt") as file:
        assert not [name for name in file.keys() if "value_head" in name]  # noqa: SIM118


def test_rows_say_what_was_read_and_how_far_a_step_went(whole):
    kind, path = whole
    row = RunDirectory.open(path).generations()[1]
    assert row["backward_tokens"] > row["tokens"]
    assert row["best_member"] is None
    if kind == "ppo":
        assert row["forward_tokens"] * 2 == row["backward_tokens"]  # two epochs
        assert 0 < row["sampler_kl"] < 1
        assert 0 <= row["clipped"] < 1
        assert row["entropy"] > 0
    else:
        assert row["samples_kept"] >= 3 * (1 - row["groups_without_signal"])


def test_a_divergence_from_the_start_is_part_of_the_reward(model, tmp_path):
    values = config(model, "ppo", "task.kl_coef=0.5", "generations=2")
    path = finish(germline.train(values, tmp_path / "run"))
    first, second = (row["parts"]["kl"] for row in RunDirectory.open(path).generations())
    assert first == pytest.approx(0, abs=1e-4)
    assert second > 1e-4
