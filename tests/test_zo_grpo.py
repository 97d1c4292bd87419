"""Zeroth-order GRPO: its coefficients, the rows that are scored, the step, and whole runs."""

import json
from typing import Any

import numpy as np
import pytest

import germline
from germline.config import load_config
from germline.methods.method import check_task
from germline.methods.sampled_batch import row_log_probs, scoring_group
from germline.methods.zo_grpo import ZerothOrderGrpoMethod, even_parts
from germline.protocols import ScoringGroup
from germline.record import RunDirectory
from germline.run import build_run_parts
from germline.tasks import make_task
from germline.types import GermlineError, Population, SeedPerturbation, Update
from tests.tiny_runs import one_generation, zo_grpo_run
from tests.toy_runs import finish, journal, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

TOY = ("method=zo_grpo", "strategy.learning_rate=auto", "method.rows_per_member=5")


@pytest.mark.parametrize("clip", ["0.1", "null"])
def test_a_later_update_of_a_batch_follows_the_clipped_objective(model, clip):
    """Of the rows that were sampled before the center moved, against equation (1)."""
    ours = (
        "method.updates_per_batch=2",
        "method.rows_per_member=12",
        "method.relative_step=2",
        f"method.clip={clip}",
        "strategy.antithetic=true",
    )
    with build_run_parts(zo_grpo_run(model, *ours)) as parts:
        method = parts.method
        assert isinstance(method, ZerothOrderGrpoMethod)
        parts.fleet.apply(one_generation(parts)[2].update)
        sampled = method.sampled
        assert sampled is not None
        population, evaluated, learned = one_generation(parts, 1)
        assert sampled is method.sampled
        group = scoring_group([None, *population.members], sampled.rows)
        scores = [row_log_probs(texts, sampled.rows) for texts in parts.fleet.score([group])]
        center = scores[0]

    def objective(log_probs):
        total = 0.0
        for row in sampled.rows:
            ratio = np.exp(log_probs[row.number] - sampled.log_probs[row.number])
            at_center = np.exp(center[row.number] - sampled.log_probs[row.number])
            low, high = (0, np.inf) if clip == "null" else (1 - float(clip), 1 + float(clip))
            clipped = np.clip(at_center, low, high)
            # The side of a kink on which the center is: members may be on the other one.
            is_bound = clipped * row.advantage < at_center * row.advantage
            total += (np.where(is_bound, clipped, ratio) * row.advantage).sum()
        return total / 3

    found = evaluated.members.rewards.mean(axis=1)
    expected = np.array([objective(one) for one in scores[1:]])
    slopes = (expected[0::2] - expected[1::2]) / 2
    assert np.linalg.norm(found[0::2] - slopes) < 0.02 * np.linalg.norm(slopes)
    assert evaluated.rollouts.rollouts == ()
    assert (learned.metrics["clipped"] > 0) == (clip != "null")
    assert learned.metrics["sampler_kl"] > 0


@pytest.mark.parametrize(("antithetic", "population"), [(True, 36), (False, 35)])
def test_every_group_has_about_as_many_members_and_whole_pairs(antithetic, population):
    members = tuple(SeedPerturbation(0, 0, i, 1, 0.1) for i in range(population))
    parts = even_parts(Population(0, members, antithetic), 4)
    assert [member for part in parts for member in members[part]] == list(members)
    assert {part.stop - part.start for part in parts} == ({8, 10} if antithetic else {8, 9})


def test_only_the_center_generates():
    with build_run_parts(settings(*TOY)) as parts:
        population, evaluated, learned = one_generation(parts)
        assert vars(parts.method)["sampled_share"] == 4 / len(parts.task.examples("train"))
    assert evaluated.rollouts.rewards.shape == (8, 4)
    assert len(evaluated.rollouts.rollouts) == 8 * 4
    rollouts = evaluated.rollouts.rollouts
    texts = {one.completion.text for one in rollouts if one.example == rollouts[0].example}
    assert len(texts) > 1
    assert len(learned.utilities) == len(population) == 6
    assert learned.metrics["rows_scored"] == 5
    assert 0 <= learned.metrics["groups_without_signal"] < 1
    assert len(learned.mean_rewards) == 8


def test_samples_have_the_temperature_of_the_method_and_held_out_completions_the_tasks():
    cold = settings(*TOY, "method.temperature=0.01", "task.temperature=1")
    with build_run_parts(cold) as parts:
        _, evaluated, _ = one_generation(parts)
        assert parts.decoding.temperature == 1
    rollouts = evaluated.rollouts.rollouts
    assert len({one.completion.text for one in rollouts if one.example == rollouts[0].example}) == 1


@pytest.mark.parametrize("antithetic", [True, False])
def test_members_in_groups_score_the_same_as_all_at_once(model, antithetic):
    ours = (f"strategy.antithetic={antithetic}", "strategy.population=40", "batch_size=6")
    with build_run_parts(zo_grpo_run(model, *ours, "method.rows_per_member=3")) as parts:
        population, evaluated, _ = one_generation(parts)
        assert len(evaluated.slopes) == 2
        method = parts.method
        assert isinstance(method, ZerothOrderGrpoMethod)
        assert method.sampled is not None
        groups, _ = method._drawn(method.sampled.rows, population)
        for group, rows in zip(evaluated.slopes, groups, strict=True):
            asked = ScoringGroup(
                [None, population.members[group.directions.start * (1 + antithetic)]],
                [asked for row, _ in rows for asked, _ in row.texts],
                [written for row, _ in rows for _, written in row.texts],
            )
            center, member = parts.fleet.score([asked])
            ratios = np.concatenate(member) - np.concatenate(center)
            if not antithetic:
                assert group.slopes[0] == pytest.approx(ratios, abs=1e-5)
            assert len(group.slopes[0]) == len(ratios)


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
        assert method.sampled is not None
        rows = method.sampled.rows
    cut = [one.completion.finish == "length" for one in evaluated.rollouts.rollouts]
    assert 0 < sum(cut) < len(cut)
    used = [row.texts[-1][1].finish for row in rows]
    assert used
    assert "length" not in used
    assert evaluated.metrics["truncated"] == pytest.approx(np.mean(cut))


def test_the_updates_of_a_batch_see_one_batch_and_no_batch_is_skipped():
    with build_run_parts(settings(*TOY)) as once:
        expected = [once.batch(number) for number in (0, 0, 0, 1)]
    with build_run_parts(settings(*TOY, "method.updates_per_batch=3")) as parts:
        assert [parts.batch(generation) for generation in range(4)] == expected
    assert expected[0] != expected[-1]


def test_the_updates_of_a_batch_after_the_first_have_its_rollouts(tmp_path):
    ours = settings(*TOY, "method.updates_per_batch=3", "space=full")
    rows = RunDirectory.open(finish(germline.train(ours, tmp_path / "run"))).generations()
    assert [row["rollouts"] for row in rows] == [32, 0, 0, 32]
    assert rows[1]["fitness"] == rows[0]["fitness"]
    journal = (tmp_path / "run/journal.jsonl").read_text().splitlines()
    # Rewards that were compared before are not alike for the second time.
    examples = [json.loads(line)["step"]["examples"] for line in journal]
    assert examples[0] == examples[1] == examples[2]


def test_the_method_has_defaults_of_its_own_that_a_config_overrides():
    ours: Any = load_config({"method": "zo_grpo"}).strategy
    assert (ours.population, ours.antithetic) == (128, False)
    assert load_config({"method": "zo_grpo"}, ["strategy.population=8"]).strategy.population == 8
    assert load_config({}).strategy.population == 32
    shapings = [
        load_config({"method": "zo_grpo"}, given).shaping.kind for given in ([], ["shaping=raw"])
    ]
    assert shapings == ["centered_ranks", "raw"]
    assert load_config({}).shaping.kind == "z_score"


@pytest.mark.parametrize(
    ("overrides", "members"),
    [
        (("method=zo_grpo",), 4),
        (("method=es",), 16),
        (("method=zo_grpo", "strategy.sigma.pairs=3"), 6),
    ],
)
def test_few_members_try_a_sigma_where_members_only_score(overrides, members):
    tried = []

    def divergence(asked):
        tried.append(len(asked))
        return 0.002

    with build_run_parts(settings("strategy.sigma=auto", *overrides)) as parts:
        strategy: Any = parts.method.strategy
        strategy.calibrate(0, divergence)
    assert set(tried) == {members}


# --- episodes


ENVIRONMENT = """
class Vowels:
    def reset(self, word: str, seed: int) -> str:
        self.said = ""
        return f"Say {word}."

    def step(self, reply: str) -> tuple[str, bool, float]:
        self.said += reply
        done = len(self.said) > 8
        return "More!", done, sum(one in "aeiou" for one in reply) / 4

environment = Vowels
train = [{"prompt": "Say it.", "word": f"word {i}"} for i in range(6)]
test = train[:2]
"""


def episodes(folder):
    """Return the overrides of a task of episodes whose rewards differ."""
    path = folder / "vowels.py"
    path.write_text(ENVIRONMENT, encoding="utf-8")
    task = {"kind": "environment", "path": str(path), "max_new_tokens": 4, "max_turns": 3}
    return (*TOY, f"task={json.dumps(task)}", "task.temperature=1")


def test_all_turns_of_the_center_are_scored(tmp_path):
    with build_run_parts(settings(*episodes(tmp_path))) as parts:
        population = parts.method.ask(0)
        evaluated = parts.method.evaluate(
            parts.fleet, population, parts.batch(0), parts.decoding_of(0)
        )
        learned = parts.method.learn(population, evaluated)
        method = parts.method
        assert isinstance(method, ZerothOrderGrpoMethod)
        assert method.sampled is not None
        groups, _ = method._drawn(method.sampled.rows, population)
        rows = {row.number: row for group in groups for row, _ in group}.values()
        turns = [text for row in rows for text in row.texts]
    assert len(turns) > len(rows) > 0
    samples, examples = evaluated.rollouts, evaluated.rollouts.rewards.shape
    places = [divmod(row.number, examples[0]) for row in rows]
    written = [samples.rollouts[one * examples[1] + place] for place, one in places]
    tokens = sum(len(rollout.completion.tokens) for rollout in written)
    assert learned.metrics["tokens_scored"] == tokens * (1 + len(population))
    assert isinstance(learned.update, Update)
    assert any(learned.update.coefficients)


def test_a_run_of_episodes_resumes_to_the_same_bits(tmp_path):
    ours = episodes(tmp_path)
    whole = finish(germline.train(settings(*ours), tmp_path / "whole"))
    part = stopped_after(germline.train(settings(*ours), tmp_path / "part"), 1)
    finish(germline.resume(part))
    assert journal(part) == journal(whole)


def test_environments_that_ask_for_replies_themselves_are_refused(monkeypatch):
    config = load_config({"method": "zo_grpo", "task": "wordle"})
    task = make_task(config.task)
    check_task(config, task)
    monkeypatch.setattr(type(task), "asks_endpoint", True, raising=False)
    with pytest.raises(GermlineError, match=r"method\.kind=zo_grpo scores conversations"):
        check_task(config, task)
