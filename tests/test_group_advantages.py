"""Advantages of the samples of each example, and the rows that groups of members score."""

import math

import numpy as np
import pytest

from germline.methods.sampled_batch import draw_rows, group_advantages, mean_rewards


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


WEIGHTS = np.array([0.5, 0.0, -2.0, 0.1, -0.4, 3.0])


@pytest.mark.parametrize(("least_share", "groups"), [(0.0, 1), (0.0, 4), (0.7, 4), (1.0, 2)])
def test_drawn_rows_weigh_on_average_what_all_rows_weigh(least_share, groups):
    mean = np.zeros((groups, 6))
    for i in range(1000):
        drawn, _ = draw_rows(WEIGHTS, 3, least_share, groups, (i + 0.5) / 1000)
        for group, rows in enumerate(drawn):
            assert len(rows) <= 3
            for row, weight in rows.items():
                mean[group, row] += weight / 1000
    assert mean == pytest.approx(np.tile(WEIGHTS, (groups, 1)), abs=0.02)


def test_groups_draw_neighbors_and_together_all_rows():
    drawn, share = draw_rows(np.ones(64), 16, 0.0, 4, 0.123)
    assert share == 0.25
    assert sorted(row for rows in drawn for row in rows) == list(range(64))
    for rows in drawn:
        first = next(row for row in rows if (row - 1) % 64 not in rows)
        assert {(row - first) % 64 for row in rows} == set(range(16))


def test_arcs_that_overlap_hit_different_rows():
    drawn, share = draw_rows(np.ones(64), 16, 0.5, 4, 0.123)
    assert share == 0.5
    assert {row for rows in drawn for row in rows} == set(range(64))


def test_all_rows_are_scored_as_they_are_where_they_are_few():
    drawn, share = draw_rows(np.array([0.0, 2.0, -1.0]), 2, 0.0, 3, 0.3)
    assert drawn == [{1: 2.0, 2: -1.0}] * 3
    assert share == 1.0


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
    assert group_advantages(rewards * size, "batch") == pytest.approx(
        group_advantages(rewards, "batch")
    )
