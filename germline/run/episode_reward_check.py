"""Check that an environment gives a reward in episodes that are played to their end.

An episode without a reward earns the floor, and so looks like one that has earned the floor. Here,
episodes are played with floors that no environment gives, which tell the two apart.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from germline.config import Config
from germline.environments.grader import EnvironmentGrader
from germline.graders.pool import GraderPool
from germline.protocols import Task
from germline.run.example_episode import play_example
from germline.scorers.scored_graders import Graders
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Example, GermlineError

NEVER_GIVEN = -1e300
"""The floor of a part with a positive weight, which no environment gives."""


def missing_reward(
    task: Task, config: Config, graders: Graders, examples: Sequence[Example]
) -> str | None:
    """Say that no episode had a reward; None where one had, and for a task without environment.

    Args:
        task: of any kind.
        config: whose limits of graders hold.
        graders: of the task.
        examples: to play, with the gold answer as every reply.
    """
    if not isinstance(task, EnvironmentTask):
        return None
    grader = task.episode_grader
    if not isinstance(grader, EnvironmentGrader):
        return None
    limits, turns = config.graders, task.max_turns

    def all_have(floors: Mapping[str, float], graders: Graders) -> bool:
        grades = (play_example(example, turns, graders).grade for example in examples)
        return all(grade.parts == floors and grade.failure is None for grade in grades)

    floors = {
        part: -NEVER_GIVEN if weight < 0 else NEVER_GIVEN for part, weight in task.rubric.items()
    }
    probe = replace(grader, rubric=replace(grader.rubric, floors=floors))
    try:
        if not all_have(task.floor, graders):
            return None
        with GraderPool(
            *(probe, task.rubric, task.floor),
            timeout_s=limits.timeout_s,
            memory_gb=limits.memory_gb,
            max_turns=turns,
        ) as pool:
            pool.redirect_output(Path(os.devnull))  # `graders` have printed the same
            if not all_have(floors, pool):
                return None
    except GermlineError:  # the other checks report it
        return None
    return (
        f"no step gave a reward in {len(examples)} episodes of up to {turns} turns that were "
        "tried, and an episode without a reward earns the floor: return rewards from step(), or "
        "define get_reward()"
    )
