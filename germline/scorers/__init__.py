"""Scorers: models and services that score completions, many members in one batch.

A task names its scorers in `task.scorers`. Each one adds a part to the rubric of the task. A scorer
takes many completions at once, which a grader in a worker process cannot, and its failures are not
the model's: a completion that cannot be scored has a missing reward (NaN and a reason), never 0.
"""
