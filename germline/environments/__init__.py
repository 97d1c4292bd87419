"""Environments: what an episode of several turns is played with, and how its replies are answered.

An environment is a class of one of two shapes:

    class Mine:                                     class Tools:          # as in TRL
        def reset(self, **row) -> str | None            def reset(self, **row) -> str | None
        def step(self, reply) -> StepResult             def any_public_method(self, ...) -> tool
        def get_reward(self)      # optional            def get_reward(self)

`grader.EnvironmentGrader` plays it in a grader process: it is a pure function of the replies so
far, the row and a seed. docs/environments.md shows how to write one.
"""

from germline.environments.adapters import StepResult

__all__ = ["StepResult"]
