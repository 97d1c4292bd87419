"""Several samples of an example by every member, and the reward that they have together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import germline
from germline.config import load_config
from germline.methods.method import SampleReducer
from germline.record import RunDirectory
from germline.run import build_run_parts
from germline.types import Completion, Evaluation, Example, GermlineError, Grade, Rollout
from tests.toy_runs import run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")


class Letters:
    """The answer is the text."""

    def answer_of(self, text: str, _example: Example) -> str | None:
        return text


LETTERS: Any = Letters()
EXAMPLES = [Example(5, "a", "1", chat=False), Example(9, "b", "2", chat=False)]
REWARDS = np.array([[0.0, 1.0, 1.0, 0.0, 0.0, 1.0], [0.5, 0.0, 0.25, 1.0, 1.0, np.nan]])
TEXTS = ("x", "y", "y", "p", "p", "q")


def evaluation(members: int = 2) -> Evaluation:
    rollouts = tuple(
        Rollout(
            member,
            EXAMPLES[place // 3].index,
            Completion(text, (1,), "eos", 2),
            Grade(float(REWARDS[member, place]), {}),
        )
        for member in range(members)
        for place, text in enumerate(TEXTS)
    )
    return Evaluation(REWARDS.copy(), rollouts, 12, 0.0)


@pytest.mark.parametrize(
    ("fitness", "expected"),
    [
        ("mean", [[2 / 3, 1 / 3], [0.25, np.nan]]),
        ("pass_at_k", [[1.0, 1.0], [0.5, np.nan]]),
        ("worst_of_k", [[0.0, 0.0], [0.0, np.nan]]),
        ("majority", [[1.0, 0.0], [0.125, np.nan]]),  # y, y and p, p; equal answers: their mean
    ],
)
def test_the_samples_of_an_example_have_one_reward(fitness: Any, expected: Any) -> None:
    reducer = SampleReducer(3, fitness, LETTERS)
    np.testing.assert_allclose(reducer.reduced(evaluation(), EXAMPLES).rewards, expected)


SAMPLES = ("method.samples=3", "record.rewards=true")


def test_a_run_learns_from_the_best_sample(tmp_path: Path) -> None:
    best = (*SAMPLES, "method.fitness=pass_at_k")
    whole = RunDirectory.open(run(tmp_path / "whole", *best))
    rows = whole.generations()
    assert [row["rollouts"] for row in rows] == [6 * 4 * 3] * 4
    assert whole.spent["rollouts"] == 4 * 6 * 4 * 3
    mean = RunDirectory.open(run(tmp_path / "mean", *SAMPLES))
    better, plain = (np.load(one.rewards / "000000.npz")["rewards"] for one in (whole, mean))
    assert better.shape == plain.shape == (6, 4)
    assert (better >= plain).all()
    assert better.mean() > plain.mean()


@pytest.mark.parametrize("options", [(), ("prompt_search.template=['{prompt}', 'Q: {prompt}']",)])
def test_the_center_is_rewarded_as_a_member(options: tuple[str, ...]) -> None:
    config = settings(*SAMPLES, "method.fitness=worst_of_k", *options)
    with build_run_parts(config) as parts:
        batch, decoding = parts.batch(0), parts.decoding_of(0)
        population = replace(parts.method.ask(0), evaluate_center=True)
        found = parts.method.evaluate(parts.fleet, population, batch, decoding)
        samples = parts.method.evaluate_center(parts.fleet, batch, decoding, 3).rewards
    assert len(found.members.rollouts) == 6 * 4 * 3
    assert found.center is not None
    np.testing.assert_array_equal(found.center.rewards, samples.min(axis=0)[None])


def test_a_majority_needs_answers(tmp_path: Path) -> None:
    with pytest.raises(GermlineError, match=r"fitness=majority: task.kind=conciseness extracts"):
        germline.train(settings("method.samples=3", "method.fitness=majority"), tmp_path / "run")
    config = load_config(
        {"task": {"kind": "arithmetic", "temperature": 1}, "strategy": {"sigma": 0.01}},
        ["method.samples=3", "method.fitness=majority", "batch_size=2", "strategy.population=2"],
    )
    with build_run_parts(config) as parts:
        members = parts.method.evaluate(
            parts.fleet, parts.method.ask(0), parts.batch(0), parts.decoding_of(0)
        ).members
    assert members.rewards.shape == (2, 2)
    assert np.isin(members.rewards, (0, 1 / 3, 1)).all()  # 1 / 3: no two answers are equal


KEPT = "record.rewards=true"


def test_the_rewards_of_a_generation_have_the_fitness_that_the_run_recorded(tmp_path: Path) -> None:
    directory = RunDirectory.open(run(tmp_path / "run", KEPT))
    for row in directory.generations():
        with np.load(directory.rewards / f"{row['generation']:06}.npz") as kept:
            assert kept["rewards"].shape == (6, len(kept["examples"]))
            assert kept["rewards"].mean() == pytest.approx(row["fitness"]["mean"])
    shown = [one for one in directory.rollouts() if one["generation"] == 0]
    with np.load(directory.rewards / "000000.npz") as first:
        for one in shown:
            (place,) = np.flatnonzero(first["examples"] == one["example"])
            assert first["rewards"][one["member"], place] == one["reward"]
    plain = run(tmp_path / "plain")
    assert not (plain / "rewards").exists()
    assert (plain / "journal.jsonl").read_bytes() == (directory.path / "journal.jsonl").read_bytes()


def test_a_resumed_run_has_the_files_of_a_run_in_one_go(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", KEPT)
    stopped = stopped_after(germline.train(settings(KEPT), tmp_path / "stopped"), 2)
    uncommitted = stopped / "rewards" / "000099.npz"
    (stopped / "rewards" / "mine.npz").write_bytes(b"of a user")
    uncommitted.write_bytes(b"of a killed run")
    germline.resume(stopped).run()
    files = {one.name: one.read_bytes() for one in (whole / "rewards").iterdir()}
    assert files == {one.name: one.read_bytes() for one in (stopped / "rewards").glob("0*")}
    assert sorted(files) == [f"{n:06}.npz" for n in range(4)]
