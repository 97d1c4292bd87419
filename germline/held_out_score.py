"""The data type of a held-out score, with what else was found of the same weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """A held-out result: mean of the task's metric with its standard error over examples.

    Attributes:
        generation: number of updates before it, 0 for the starting weights. These are the weights
            after generation `generation - 1`, which `export` and `replay` take.
        proportion: whether the metric of an example is 0 or 1, and the mean a proportion.
        values: the metric of each example; NaN: missing.
        rewards: the reward of each example, recorded beside `scorers`.
        scorers: of the same completions, by `held_out.scorers`; `metric` is the name of one.
        parts: mean of each part of the rubric, where it has several.
        at_k: where examples were sampled several times: pass@k and so on, by `metric`.
        behavior: of the completions, see `evaluation.behavior.behavior`.
        retained: scores of tasks and texts that training should keep, by name.
        forgot: those of them that lost more than their `max_drop`; of scores of a run directory.
    """

    generation: int
    metric: str
    mean: float
    standard_error: float
    n: int
    reward: float
    proportion: bool = False
    higher_is_better: bool = True
    values: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    scorers: tuple["HeldOutScore", ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)
    at_k: tuple["HeldOutScore", ...] = ()
    behavior: Mapping[str, float] = field(default_factory=dict, hash=False)
    retained: Mapping[str, "HeldOutScore"] = field(default_factory=dict, hash=False)
    forgot: tuple[str, ...] = ()
