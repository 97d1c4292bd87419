"""Short runs of a tiny model in this process, for methods that need log-probabilities."""

from pathlib import Path
from typing import Any

from germline.config import Config, load_config


def tiny_run(model: Path, *overrides: str, **sections: Any) -> Config:
    """Return the config of a run; sections and then overrides change it."""
    values = {
        "model": str(model),
        "task": {"kind": "conciseness", "max_new_tokens": 5},
        "space": "full",
        "batch_size": 3,
        "held_out": {"every": 2, "examples": 2},
        "record": {"snapshot_every": 2, "tensorboard": False},
    }
    return load_config({**values, **sections}, overrides)


def zo_grpo_run(model: Path, *overrides: str) -> Config:
    """Return the config of a run of zeroth-order GRPO."""
    return tiny_run(
        model,
        *overrides,
        method={"kind": "zo_grpo", "group_size": 4},
        strategy={"population": 8, "sigma": 0.0005},
        engine={"dtype": "float32"},
        generations=3,
    )


def one_generation(parts, number=0):
    """Return what the method evaluated in a generation, and what it learned."""
    population = parts.method.ask(number)
    evaluated = parts.method.evaluate(
        parts.fleet, population, parts.batch(number), parts.decoding_of(number)
    )
    return population, evaluated, parts.method.learn(population, evaluated)
