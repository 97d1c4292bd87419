"""Other grades for the rollouts of an evaluation."""

from dataclasses import replace

import numpy as np

from germline.methods.reward_term import replace_grades
from germline.types import Completion, Evaluation, Example, Grade, Rollout

BATCH = [Example(index, f"{index}?", "", chat=True) for index in (7, 3, 7)]


def rollout(member, example, reward):
    return Rollout(member, example, Completion("a", (0,), "eos", 1), Grade(reward, {}))


def test_every_rollout_has_its_new_grade_and_what_is_lost_stays_missing():
    given = (rollout(0, 7, 1.0), rollout(0, 3, 2.0), rollout(0, 7, 1.0), rollout(1, 7, 4.0))
    old = Evaluation(np.full((2, 3), 9.0), given, 5, 0.5)
    new = replace_grades(
        old, BATCH, lambda one, e: replace(one.grade, reward=one.grade.reward + e.index)
    )
    np.testing.assert_array_equal(new.rewards, [[8.0, 5.0, 8.0], [11.0, np.nan, 11.0]])
    assert [one.grade.reward for one in new.rollouts] == [8.0, 5.0, 8.0, 11.0]
    assert (new.tokens, new.decode_seconds) == (5, 0.5)
    assert [one.grade.reward for one in old.rollouts] == [1.0, 2.0, 1.0, 4.0]
