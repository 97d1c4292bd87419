"""Sample with ES, optimize with gradients: the gradient, what it is taken of, and going on."""

import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import germline
from germline.checkpoint import list_snapshots, snapshot_generations
from germline.config import load_config
from germline.engines.inprocess import InProcessEngine
from germline.fleet import LocalFleet
from germline.methods.es_sample_gd import (
    AdvantageRow,
    EsSampleGradientDescentMethod,
    policy_gradient,
)
from germline.methods.policy_gradient import token_outputs
from germline.record import RunDirectory
from germline.run import Training, build_run_parts
from germline.types import Evaluation, GermlineError
from tests.command_line import command
from tests.slow_cases import mostly_slow
from tests.tiny_runs import tiny_run
from tests.toy_runs import finish, journal, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

GENERATIONS = 4


def config(model, *overrides):
    return tiny_run(
        model,
        *(overrides or ("strategy.sigma=0.05",)),
        method="es_sample_gd",
        strategy={"population": 4, "optimizer": "adam", "learning_rate": 0.001},
        generations=GENERATIONS,
    )


def members_of(parts, population, batch, decoding):
    return parts.method.evaluate_members(parts.fleet, population, batch, decoding)


@pytest.fixture(scope="module")
def played(model):
    """Parts of a run that has played a generation, and what was written in it."""
    with build_run_parts(config(model)) as parts:
        population, batch = parts.method.ask(0), parts.batch(0)
        evaluation = members_of(parts, population, batch, parts.decoding)
        rows = [
            AdvantageRow(
                next(example for example in batch if example.index == one.example),
                one.completion,
                (-1.0) ** number * (1 + number / 7),
            )
            for number, one in enumerate(evaluation.rollouts)
        ]
        yield parts, evaluation, rows


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    return finish(germline.train(config(model), tmp_path_factory.mktemp("whole") / "run"))


# --- the gradient


def objective(engine, rows):
    """Equation (1) read off the logits, in fp64."""
    total = 0.0
    for row in rows:
        logits = engine.read([None], [row.example], [[row.completion]])[0][0].double()
        chosen = torch.tensor(row.completion.tokens)
        total += row.advantage * float(logits.log_softmax(-1)[range(len(chosen)), chosen].sum())
    return total / len(rows)


def test_the_gradient_is_the_slope_of_the_objective(played):
    parts, _, rows = played
    engine = parts.fleet.engine
    gradient = policy_gradient(engine, rows, len(rows))
    for info in engine.weights.searched[:3]:
        master, slope = engine.weights.tensors[info.name], gradient[info.name]
        direction = slope / slope.norm()
        before, values = master.clone(), []
        for step in (1e-2, -1e-2):
            master.copy_(before + step * direction)
            engine.refresh()
            values.append(objective(engine, rows))
        master.copy_(before)
        engine.refresh()
        assert (values[0] - values[1]) / 2e-2 == pytest.approx(float(slope.norm()), rel=0.02)


def test_prompts_of_different_lengths_do_not_cost_the_logits_between_them(played, monkeypatch):
    parts, _, rows = played
    engine = parts.fleet.engine
    before = policy_gradient(engine, rows, len(rows))
    monkeypatch.setattr("germline.engines.inprocess.LOGITS_AT_ONCE", 1)
    apart = policy_gradient(engine, rows, len(rows), rows_per_pass=5)
    longest = max(len(row.completion.tokens) for row in rows)
    widths = set()
    head = engine.model.get_output_embeddings()
    with head.register_forward_hook(lambda _head, _input, out: widths.add(out.shape[1])):
        narrow = policy_gradient(engine, rows, len(rows))
    assert max(widths) <= longest
    for name, values in before.items():
        torch.testing.assert_close(narrow[name], values, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(apart[name], values, rtol=1e-3, atol=1e-5)


def test_taking_a_gradient_leaves_no_trace(played):
    parts, _, rows = played
    engine = parts.fleet.engine
    before = engine.weights.digest()
    policy_gradient(engine, rows, len(rows))
    assert engine.weights.digest() == before
    assert all(p.grad is None and not p.requires_grad for p in engine.model.parameters())


def test_the_temperature_of_sampling_is_that_of_the_probabilities(played):
    parts, _, rows = played
    hot = token_outputs(parts.fleet.engine, rows[:1], 2.0)[0].log_probs
    logits = parts.fleet.engine.read([None], [rows[0].example], [[rows[0].completion]])[0][0]
    tokens = torch.tensor(rows[0].completion.tokens)[:, None]
    expected = (logits / 2).log_softmax(-1).gather(-1, tokens)[:, 0]
    torch.testing.assert_close(hot.detach(), expected.clone(), rtol=1e-4, atol=1e-5)


# --- what it is taken of


def advantages(model, rewards, *overrides):
    with build_run_parts(config(model, "strategy.sigma=0.05", *overrides)) as parts:
        assert isinstance(parts.method, EsSampleGradientDescentMethod)
        evaluation = Evaluation(np.array(rewards), (), tokens=0, decode_seconds=0.0)
        return parts.method._advantages(parts.method.ask(0), evaluation)


REWARDS = [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [2.0, 9.0]]


def test_rewards_are_compared_on_each_example(model):
    found = advantages(model, REWARDS)
    first = np.array([1.0, 2, 3, 2])
    np.testing.assert_allclose(found[:, 0], (first - 2) / first.std())
    assert found[:3, 1].tolist() == [found[0, 1]] * 3


def test_or_members_are_compared_as_in_es(model):
    found = advantages(model, REWARDS, "method.advantage=member", "shaping=raw")
    fitness = np.mean(REWARDS, axis=1)
    np.testing.assert_allclose(found, np.repeat((fitness - fitness.mean())[:, None], 2, axis=1))


@pytest.mark.parametrize("advantage", ["example", "member"])
def test_a_missing_reward_has_no_say(model, advantage):
    rewards = [[np.nan, 5.0], *REWARDS[1:]]
    assert advantages(model, rewards, f"method.advantage={advantage}")[0, 0] == 0


@contextmanager
def stepped(model, *overrides):
    """Take a step with SGD; give the gradient and the change of every tensor."""
    values = config(model, "strategy.sigma=0.05", "strategy.optimizer=sgd", *overrides)
    with build_run_parts(values) as parts:
        assert isinstance(parts.method, EsSampleGradientDescentMethod)
        assert isinstance(parts.fleet, LocalFleet)
        engine, population = parts.fleet.engine, parts.method.ask(0)
        assert isinstance(engine, InProcessEngine)
        evaluation = members_of(parts, population, parts.batch(0), parts.decoding)
        rows = parts.method._rows(population, parts.batch(0), evaluation)
        gradient = policy_gradient(engine, rows, evaluation.rewards.size)
        tensors = engine.weights.tensors
        before = {one.name: tensors[one.name].clone() for one in engine.weights.searched}
        parts.method.apply(parts.fleet, parts.method.strategy.tell(population, np.zeros(4)))
        yield gradient, {name: tensors[name] - values for name, values in before.items()}


def test_theta_takes_one_step_along_the_gradient(model):
    with stepped(model) as (gradient, change):
        for name, values in change.items():
            torch.testing.assert_close(values, 0.001 * gradient[name], rtol=1e-2, atol=1e-7)


def test_low_rank_members_explore_for_whole_matrices(model):
    with stepped(model, "space=low_rank", "space.layers=0") as (_, change):
        assert torch.linalg.matrix_rank(next(iter(change.values()))) > 4


def test_a_sampling_center_writes_differently_each_time(model):
    values = config(model, "method.exploration=temperature", "task.temperature=1")
    with build_run_parts(values) as parts:
        assert isinstance(parts.method, EsSampleGradientDescentMethod)
        population, batch = parts.method.ask(0), parts.batch(0)
        evaluation = members_of(parts, population, batch, parts.decoding)
        texts = [
            one.completion.text for one in evaluation.rollouts if one.example == batch[0].index
        ]
        assert len(set(texts)) > 1
        assert evaluation.rewards.shape == (4, 3)
        again = members_of(parts, population, batch, parts.decoding)
        assert [one.completion for one in again.rollouts] == [
            one.completion for one in evaluation.rollouts
        ]


# --- the run


def test_a_killed_run_goes_on_from_its_newest_snapshot_to_the_same_bits(model, whole, tmp_path):
    path = stopped_after(germline.train(config(model), tmp_path / "run"), 3)
    list_snapshots(path / "snapshots")[-1].unlink()  # a kill writes no last one
    training = germline.resume(path)
    assert len(training.directory.journal.read()) == 2
    finish(training)
    assert journal(path) == journal(whole)
    assert len(RunDirectory.open(path).generations()) == GENERATIONS


def test_without_any_snapshot_a_run_begins_again(model, whole, tmp_path):
    path = stopped_after(germline.train(config(model), tmp_path / "run"), 1)
    shutil.rmtree(path / "snapshots")
    with pytest.raises(GermlineError, match=r"generation 0 followed .*`germline resume` trains it"):
        germline.export(path, tmp_path / "model")
    finish(germline.resume(path))
    assert journal(path) == journal(whole)


def test_replay_starts_at_a_snapshot_and_says_why_it_cannot(whole):
    entries = RunDirectory.open(whole).journal.read()
    assert germline.replay(whole) == entries[-1].digest
    assert germline.replay(whole, 1) == entries[1].digest
    with pytest.raises(GermlineError, match=r"generation 2 followed .*name a generation that has"):
        germline.replay(whole, 2)
    assert germline.replay(whole, -1) == RunDirectory.open(whole).base_digest


def test_of_a_killed_run_the_newest_snapshot_speaks_and_says_so(model, tmp_path, caplog):
    path = stopped_after(germline.train(config(model), tmp_path / "run"), 2)
    prompts = ["What is 1 + 2?"]
    before = germline.generate(str(path), prompts, max_new_tokens=5)
    stopped_after(germline.resume(path), 1)
    list_snapshots(path / "snapshots")[-1].unlink()  # a kill writes no last one
    assert not caplog.records
    assert germline.generate(str(path), prompts, max_new_tokens=5) == before
    assert "the weights of generation 1, of the newest snapshot" in caplog.text
    assert germline.evaluate(str(path), limit=2)[0].generation == 2
    verified = command("export", path, "--verify")
    assert verified.stdout.startswith("generation 1 rebuilt, digest verified")
    germline.export(path, tmp_path / "model")
    assert germline.generate(str(tmp_path / "model"), prompts, max_new_tokens=5) == before


@pytest.mark.parametrize("stopped", mostly_slow([6, 7], quick=[6]))
def test_the_best_weights_are_kept_and_written(model, tmp_path, monkeypatch, stopped):
    scored, means = (
        Training._score,
        dict(zip(range(0, 9, 2), (0.1, 0.2, 0.9, 0.3, 0.4), strict=True)),
    )

    def score(training, generation, *, is_end):
        found, rollouts = scored(training, generation, is_end=is_end)
        return replace(found, mean=means.get(generation, 0.0), higher_is_better=True), rollouts

    monkeypatch.setattr(Training, "_score", score)
    few = ("generations=8", "record.snapshot_every=100", "record.keep_snapshots=0")
    training = germline.train(config(model, "strategy.sigma=0.05", *few), tmp_path / "run")
    path = stopped_after(training, stopped)
    if stopped == 6:
        list_snapshots(path / "snapshots")[-1].unlink()  # a kill writes no last one
    training = germline.resume(path)
    assert len(training.directory.journal.read()) == {6: 4, 7: 7}[stopped]
    finish(training)
    assert snapshot_generations(path / "snapshots") == [3, 7]
    best = RunDirectory.open(path).journal.read()[3].digest
    assert germline.replay(path, "best") == best
    assert germline.export(path, tmp_path / "model", generation="best") == 3
    assert germline.evaluate(str(path), limit=2, generation="best")[0].generation == 4
    with pytest.raises(GermlineError, match=r"generation 5 followed .*has one: 3, 7$"):
        germline.replay(path, 5)
    with pytest.raises(GermlineError, match=r"--generation 3 --merged"):
        germline.fork(path, out=tmp_path / "fork")


def test_what_was_sampled_in_training_can_be_scored_greedily(model, tmp_path):
    sampling = ("method.exploration=temperature", "task.temperature=1", "generations=1")
    path = finish(germline.train(config(model, *sampling), tmp_path / "run"))
    task = RunDirectory.open(path).config.task.model_copy(update={"temperature": 0.0})
    once, again = (germline.evaluate(str(path), task, limit=2)[0] for _ in range(2))
    assert once == again


def test_the_shipped_run_learns_in_three_generations(tmp_path):
    shipped = Path(__file__).parents[1] / "configs" / "es_sample_gd.yaml"
    small = ["generations=3", "batch_size=16", "held_out.examples=2", "record.tensorboard=false"]
    small += ["strategy.population=16", "task.max_new_tokens=8"]
    path = finish(germline.train(load_config(shipped, small), tmp_path / "run"))
    means = [row["fitness"]["mean"] for row in RunDirectory.open(path).generations()]
    assert means[-1] > means[0] + 0.2
