"""Cells: every member plays every example once, and grades find their place in whatever order."""

import math
from concurrent.futures import Future

import numpy as np
import pytest

from germline.config import MicrobatchSettings
from germline.rollout import (
    GeneratedMicrobatch,
    Microbatch,
    cut_microbatches,
    evaluate_members,
    gather_rewards,
    members_per_microbatch,
)
from germline.run.build_parts import make_decoding, make_engine
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Completion, GermlineError, Grade
from tests.toy_runs import GradedHere, settings

CONFIG = settings("batch_size=7", "strategy.population=6")
TASK = make_task(CONFIG.task)
EXAMPLES = TASK.examples("train")[:7]
MEMBERS = make_strategy(CONFIG.strategy, run_seed=0, generations=1).ask(0).members
DECODING = make_decoding(CONFIG, TASK)


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2, 3)])
def test_an_engine_that_returns_too_few_or_too_many_texts_is_an_error(shape):
    members, examples = shape
    result = [[Completion("a", (1,), "eos", 3)] * examples] * members
    part = Microbatch(0, 0, MEMBERS[:2], EXAMPLES[:2])
    with pytest.raises(GermlineError, match=rf"2 members x 2 examples .* {members} members x"):
        part.generated(result, GradedHere(TASK))


@pytest.fixture(scope="module")
def engine():
    return make_engine(CONFIG)


def played_all(engine, cell, members=MEMBERS):
    return evaluate_members(engine, GradedHere(TASK), members, EXAMPLES, cell, DECODING)


@pytest.mark.parametrize(
    ("members", "examples", "size"),
    [(6, 7, (2, 3)), (6, 7, (4, 7)), (5, 3, (8, 32)), (1, 9, (1, 2)), (6, 6, (1, 1))],
)
def test_cells_cover_every_pair_of_member_and_example_once(members, examples, size):
    cell = MicrobatchSettings(members=size[0], examples=size[1])
    covered = [
        (i, j)
        for part in cut_microbatches([None] * members, EXAMPLES[:1] * examples, cell)
        for i, _ in enumerate(part.members, start=part.first_member)
        for j, _ in enumerate(part.examples, start=part.first_example)
    ]
    assert sorted(covered) == [(i, j) for i in range(members) for j in range(examples)]


@pytest.mark.parametrize(
    ("examples", "size", "members"), [(7, 32, 146), (100, 32, 32), (2000, 2000, 1), (1, 1, 1024)]
)
def test_left_open_a_cell_holds_as_many_members_as_make_1024_rows(examples, size, members):
    assert members_per_microbatch(MicrobatchSettings(examples=size), examples) == members
    assert members_per_microbatch(MicrobatchSettings(members=3, examples=size), examples) == 3
    assert members_per_microbatch(MicrobatchSettings(rows=12, examples=4), examples=8) == 3


def test_rewards_stand_at_member_and_example(engine):
    evaluation = played_all(engine, MicrobatchSettings(members=4, examples=3))
    assert evaluation.rewards.shape == (6, 7)
    places = {example.index: place for place, example in enumerate(EXAMPLES)}
    for rollout in evaluation.rollouts:
        example = EXAMPLES[places[rollout.example]]
        expected = TASK.grader(rollout.completion.text, example)["length"]
        assert rollout.grade.reward == expected
        assert evaluation.rewards[rollout.member, places[rollout.example]] == expected


@pytest.mark.parametrize("size", [(1, 1), (8, 32)])
def test_the_toy_engine_gives_the_same_rewards_in_cells_of_any_size(engine, size):
    cell = MicrobatchSettings(members=size[0], examples=size[1])
    one, other = (
        played_all(engine, cell),
        played_all(engine, MicrobatchSettings(members=3, examples=2)),
    )
    assert one.rewards.tobytes() == other.rewards.tobytes()
    assert one.rollouts == other.rollouts


def graded(first_member, first_example, rewards):
    grades: Future[list[Grade]] = Future()
    grades.set_result([Grade(reward, {}) for row in rewards for reward in row])
    texts = [
        [
            Completion(f"{first_member + i}/{first_example + j}", (1,), "eos", 1)
            for j in range(len(row))
        ]
        for i, row in enumerate(rewards)
    ]
    part = EXAMPLES[first_example : first_example + len(rewards[0])]
    microbatch = Microbatch(first_member, first_example, [None] * len(rewards), part)
    return GeneratedMicrobatch(microbatch, texts, grades)


QUARTERS = [
    graded(0, 0, [[0.0, 1.0], [10.0, 11.0]]),
    graded(0, 2, [[2.0], [12.0]]),
    graded(2, 0, [[20.0, 21.0]]),
    graded(2, 2, [[22.0]]),
]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_cells_are_gathered_in_whatever_order_they_finish(order):
    evaluation = gather_rewards([QUARTERS[place] for place in order], (3, 3), 0.5)
    np.testing.assert_array_equal(
        evaluation.rewards, [[0, 1, 2], [10, 11, 12], [20, 21, 22]], strict=False
    )
    assert [one.completion.text for one in evaluation.rollouts] == [
        f"{i}/{j}" for i in range(3) for j in range(3)
    ]
    assert evaluation.decode_seconds == 0.5


def test_what_never_came_and_what_has_no_reward_is_missing_and_not_zero():
    evaluation = gather_rewards(QUARTERS[:3], (3, 3), 0.5)
    assert math.isnan(evaluation.rewards[2, 2])
    assert np.isnan(evaluation.rewards).sum() == 1
    lost = gather_rewards([graded(0, 0, [[1.0, math.nan]])], (1, 2), 0.5)
    assert np.isnan(lost.rewards).tolist() == [[False, True]]
