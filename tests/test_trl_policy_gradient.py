"""GRPO and RLOO of TRL: the same step as TRL's own training, resumed to the bit, masked."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import germline
from germline.checkpoint import list_snapshots
from germline.config import load_config
from germline.engines.inprocess import InProcessEngine
from germline.fleet import LocalFleet
from germline.methods.method import check_task
from germline.methods.trl_policy_gradient import TrlMethod, largest_divisor, token_rows
from germline.run import build_run_parts
from germline.tasks import make_task
from germline.types import GermlineError
from tests.tiny_runs import one_generation, tiny_run
from tests.toy_runs import finish, journal, stopped_after

trl = pytest.importorskip("trl", reason="trl is not installed")
pytestmark = pytest.mark.usefixtures("graded_in_process")


def config(model, kind="grpo", *overrides):
    return tiny_run(
        model,
        *overrides,
        method={"kind": kind, "group_size": 4, "rows": 6},
        strategy={"learning_rate": 0.01},
        generations=3,
    )


def sampled(parts):
    """Return the engine of a run, and the rows of its first generation, with various rewards."""
    assert isinstance(parts.method, TrlMethod)
    assert isinstance(parts.fleet, LocalFleet)
    _, _, learned = one_generation(parts)
    parts.method._rows = [
        replace(row, reward=math.nan if place == 5 else math.sin(place))
        for place, row in enumerate(parts.method._rows)
    ]
    return parts.fleet.engine, parts.method._rows, learned.update


def trained_by_trl(kind, path, rows, per_pass, steps):
    """Train a model by TRL's own loop, for one batch of samples."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer_class, config_class = {
        "grpo": (trl.GRPOTrainer, trl.GRPOConfig),
        "rloo": (trl.RLOOTrainer, trl.RLOOConfig),
    }[kind]

    class Given(trainer_class):  # type: ignore[misc, valid-type]
        def _generate(self, prompts):
            ids = [[*row.prompt] for row in rows], [[*row.completion] for row in rows]
            texts = [""] * len(rows)
            if kind == "rloo":
                return *ids, texts
            return *ids, [[*row.mask] for row in rows], texts, None, {}, None, []

    def reward(completions, **_):
        return [None if math.isnan(row.reward) else row.reward for row in rows]

    trainer = Given(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(path),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * (len(rows) // 4)}),
        args=config_class(
            output_dir=str(path / "unused"),
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_dropout=True,
            per_device_train_batch_size=per_pass,
            gradient_accumulation_steps=len(rows) // per_pass,
            num_generations=4,
            num_iterations=steps,
            max_steps=steps,
            beta=0.0,
            optim="sgd",
            learning_rate=0.01,
            lr_scheduler_type="constant",
        ),
    )
    trainer.train()
    return {name: one.detach() for name, one in trainer.model.named_parameters()}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_a_generation_is_the_step_that_trl_itself_takes(model, kind):
    settings = ("strategy.optimizer=sgd", "method.num_iterations=2")
    with build_run_parts(config(model, kind, *settings)) as parts:
        engine, rows, update = sampled(parts)
        before = {name: one.clone() for name, one in engine.weights.tensors.items()}
        parts.method.apply(parts.fleet, update)
        of_trl = trained_by_trl(kind, model, rows, 6, steps=2)
        moved = 0.0
        for info in engine.weights.searched:
            ours = engine.weights.tensors[info.name] - before[info.name]
            theirs = of_trl[info.name] - before[info.name]
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-7)
            moved += float(ours.abs().sum())
        assert moved > 0.01


@pytest.mark.parametrize("space", ["full", "lora"])
def test_a_killed_run_resumes_from_its_newest_snapshot_to_the_same_bits(model, tmp_path, space):
    settings = config(model, "grpo", f"space={space}")
    whole = finish(germline.train(settings, tmp_path / "whole"))
    path = stopped_after(germline.train(settings, tmp_path / "run"), 3)
    list_snapshots(path / "snapshots")[-1].unlink()  # a kill writes no last one
    training = germline.resume(path)
    assert len(training.directory.journal.read()) == 2
    finish(training)
    assert journal(path) == journal(whole)
    rows = training.directory.generations()
    assert len({one.digest for one in training.directory.journal.read()}) == 3
    assert all(row["backward_tokens"] > 0 and row["grad_norm"] >= 0 for row in rows)


def test_an_adapter_is_trained_and_nothing_else(model):
    with build_run_parts(config(model, "grpo", "space=lora")) as parts:
        engine, _, update = sampled(parts)
        before = {name: one.clone() for name, one in engine.weights.tensors.items()}
        parts.method.apply(parts.fleet, update)
        changed = {n for n, one in engine.weights.tensors.items() if not one.equal(before[n])}
        assert changed == {info.name for info in engine.weights.searched}
        assert not any(one.requires_grad for one in engine.model.parameters())


def test_tokens_of_an_environment_are_masked():
    values = load_config(
        {"method": {"kind": "grpo", "group_size": 2}, "task": "wordle", "batch_size": 2},
        ["task.max_new_tokens=8"],
    )
    with build_run_parts(values) as parts:
        assert isinstance(parts.fleet, LocalFleet)
        assert isinstance(parts.fleet.engine, InProcessEngine)
        batch = parts.batch(0)
        samples = parts.method.evaluate(
            parts.fleet, parts.method.ask(0), batch, parts.decoding_of(0)
        ).rollouts
        rows = token_rows(parts.fleet.engine, samples, batch)
        decode = parts.fleet.engine.pretrained.tokenizer.decode
        for number, row in enumerate(rows):
            place, sample = divmod(number, 2)
            turns = samples.rollouts[sample * len(batch) + place].turns
            assert len(turns) > 2
            written = [id for turn in turns if turn.role == "assistant" for id in turn.tokens]
            mask = np.array(row.mask, dtype=bool)
            assert np.array(row.completion)[mask].tolist() == written
            replies = decode(np.array(row.completion)[~mask].tolist())
            assert all(turn.content.strip() in replies for turn in turns[1:] if turn.role == "user")


def test_equal_rewards_are_no_signal(model):
    with build_run_parts(config(model)) as parts:
        population, evaluated, learned = one_generation(parts)
        assert not parts.method.is_zero_signal(learned.update)
        equal = replace(evaluated.rollouts, rewards=np.ones((4, 3)))
        learned = parts.method.learn(population, replace(evaluated, rollouts=equal))
        assert parts.method.is_zero_signal(learned.update)


@pytest.mark.parametrize("argument", ["loss", "top_k", "learning_rate", "warmup_steps"])
def test_an_argument_that_the_loss_does_not_depend_on_is_refused(model, argument):
    with pytest.raises(GermlineError, match=rf"method\.args\.{argument}"):
        config(model, "grpo", f"method.args={{{argument}: 1}}")


def test_other_arguments_reach_trl(model):
    with build_run_parts(config(model, "grpo", "method.args={loss_type: dr_grpo}")) as parts:
        _, _, update = sampled(parts)
        assert isinstance(parts.method, TrlMethod)
        parts.method.apply(parts.fleet, update)
        assert parts.method._trainer.args.loss_type == "dr_grpo"
        assert parts.method._trainer.args.max_completion_length == 5


def test_rloo_refuses_episodes():
    config = load_config({"method": "rloo", "task": "wordle"})
    with pytest.raises(GermlineError, match=r"use method\.kind=grpo"):
        check_task(config, make_task(config.task))


def test_batches_are_cut_evenly():
    assert [largest_divisor(*one) for one in [(280, 32), (12, 32), (7, 4)]] == [28, 12, 1]
