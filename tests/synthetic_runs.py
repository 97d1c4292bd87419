"""Generations made up for tests of what records, draws and shows them: no engine, no task."""

import numpy as np

from germline.types import (
    Completion,
    Evaluation,
    Example,
    GenerationRecord,
    Grade,
    HeldOutScore,
    Rollout,
    Update,
)

DIGEST = "0123456789abcdef" * 4
BATCH = [Example(index, f"question {index}?", f"answer {index}", True) for index in (7, 3)]


def update(generation: int, coefficients: int = 3) -> Update:
    generator = np.random.default_rng(generation)
    return Update(0, generation, 0.1, 1 / 3, tuple(generator.normal(size=coefficients)))


def rollout(member: int, example: int, reward: float, failure: str | None = None) -> Rollout:
    completion = Completion(f"says {member}", (1, 2), "eos", 5)
    return Rollout(member, example, completion, Grade(reward, {"exact": reward}, failure))


def record(
    generation: int,
    rewards: list[list[float]] | None = None,
    held_out: HeldOutScore | None = None,
    failure: str | None = None,
) -> GenerationRecord:
    table = np.array([[1.0, 0.0], [0.5, 0.25]] if rewards is None else rewards)
    rollouts = tuple(
        rollout(member, example.index, float(table[member, place]), failure)
        for member in range(table.shape[0])
        for place, example in enumerate(BATCH)
    )
    fitness = table.mean(axis=1)
    return GenerationRecord(
        generation=generation,
        generations=10,
        fitness=tuple(float(one) for one in fitness),
        utilities=tuple(float(one - fitness[0]) for one in fitness),
        update=update(generation),
        digest=DIGEST,
        evaluation=Evaluation(table, rollouts, 400, 2.0),
        held_out=held_out,
        timing={"generate_s": 2.0, "apply_s": 0.125},
    )


def score(generation: int, mean: float = 0.5) -> HeldOutScore:
    return HeldOutScore(generation, "exact", mean, 0.05, 100, mean, higher_is_better=True)
