"""A coefficient of zo_grpo is sigma times the slope that autograd finds for the policy gradient."""

from typing import Any

import numpy as np
import pytest

from germline.fleet import LocalFleet
from germline.methods.es_sample_gd import AdvantageRow, policy_gradient
from germline.methods.sampled_batch import group_advantages
from germline.run import build_run_parts
from tests.tiny_runs import one_generation, zo_grpo_run

pytestmark = pytest.mark.usefixtures("graded_in_process")


@pytest.mark.parametrize(
    ("antithetic", "sigma", "error"), [(True, 0.0005, 0.02), (False, 3e-5, 0.02)]
)
def test_a_coefficient_is_sigma_times_the_slope_of_the_objective(model, antithetic, sigma, error):
    ours = (f"strategy.antithetic={antithetic}", f"strategy.sigma={sigma}")
    with build_run_parts(zo_grpo_run(model, *ours)) as parts:
        population, evaluated, _ = one_generation(parts)
        assert isinstance(parts.fleet, LocalFleet)
        engine: Any = parts.fleet.engine  # in this process
        batch = parts.batch(0)
        advantages = group_advantages(evaluated.rollouts.rewards, "group")
        rows = [
            AdvantageRow(batch[place], rollout.completion, advantages[rollout.member, place])
            for rollout in evaluated.rollouts.rollouts
            for place, example in enumerate(batch)
            if example.index == rollout.example
        ]
        gradient = policy_gradient(engine, [row for row in rows if row.advantage], len(batch))
        found = evaluated.members.rewards.mean(axis=1)
        slopes = [
            sum(
                float((gradient[info.name] * engine.weights.displacements([member], info)[0]).sum())
                for info in engine.weights.searched
            )
            for member in population.members
        ]
        assert np.linalg.norm(found - slopes) < error * np.linalg.norm(slopes)
