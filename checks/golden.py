"""Hold a change against recorded runs: is every bit of training, resuming and forking the same?

    python -m checks.golden record /tmp/golden.json
    python -m checks.golden compare /tmp/golden.json [nano/lora]

A word after the file limits the comparison to the runs that have it in their name.

Every run is tiny: the toy engine, or nano with a few tokens. A run's line is a hash of its rewards,
its held-out scores and the digest of its last weights. The last bits depend on the processor and on
PyTorch, so a recording belongs to the machine that made it and is not committed.
"""

import hashlib
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import germline
from tests.toy_runs import grading_in_process

TOY: dict[str, Any] = {
    "task": {
        "kind": "conciseness",
        "max_new_tokens": 16,
        "stop": list("etaoins "),
        "temperature": 1.0,
    },
    "engine": "toy",
    "batch_size": 4,
    "generations": 4,
    "graders": {"timeout_s": 60.0},
    "strategy": {"population": 6, "sigma": 0.3, "learning_rate": 0.1},
    "held_out": {"every": 2, "examples": 5, "temperature": None},
    "record": {"snapshot_every": 2, "tensorboard": False},
}
NANO: dict[str, Any] = {
    "task": {"kind": "conciseness", "max_new_tokens": 5, "temperature": 1.0},
    "batch_size": 4,
    "generations": 2,
    "graders": {"timeout_s": 60.0},
    "engine": {"threads": 1},
    "strategy": {"population": 4},
    "held_out": {"every": 2, "examples": 4, "temperature": None},
    "record": {"snapshot_every": 2, "tensorboard": False},
}
FIXED = ("strategy.sigma=0.01", "strategy.learning_rate=0.01")
NANO_SPACES = {
    "full": ("space=full",),
    "low_rank": ("space=low_rank",),
    "low_rank_layers": ("space={kind: low_rank, rank: 2}",),
    "lora": ("space={kind: lora, rank: 4}",),
    "subspace": ("space={kind: subspace, dimension: 16}",),
    "singular": ("space={kind: singular}",),
}
NANO_RUNS = {
    "auto": (),
    "adam": (*FIXED, "strategy.optimizer=adam"),
    "bf16": (*FIXED, "engine.dtype=bfloat16"),
    "bf16_full": (*FIXED, "engine.dtype=bfloat16", "space=full"),
    "sigma_rms": ("strategy.sigma_unit=rms", "strategy.sigma=0.01", "strategy.learning_rate=0.01"),
    "countdown": (*FIXED, "task={kind: countdown, max_new_tokens: 8}"),
    "two_engines": (*FIXED, "fleet.engines=2", "microbatch.rows=4"),
    "zo_grpo": ("method={kind: zo_grpo, group_size: 4}",),
    "zo_grpo_fixed": (*FIXED, "method={kind: zo_grpo, group_size: 4}"),
    "zo_grpo_updates": ("method={kind: zo_grpo, group_size: 4, updates_per_batch: 2}",),
    "zo_grpo_lora": ("method={kind: zo_grpo, group_size: 4}", "space={kind: lora, rank: 4}"),
    "zo_grpo_two_engines": (
        "method={kind: zo_grpo, group_size: 4}",
        "fleet.engines=2",
        "microbatch.rows=8",
    ),
    "kl": (*FIXED, "task.kl_coef=0.5"),
    "es_sample_gd": ("method=es_sample_gd", "space=full", *FIXED),
    "greedy": (*FIXED, "task.temperature=0"),
    "arithmetic": (*FIXED, "task={kind: arithmetic, max_new_tokens: 6}", "strategy.population=16"),
    "randopt": ("method={kind: randopt, ensemble_size: 3}", "strategy.sigma=0.01"),
    "wordle": (*FIXED, "task={kind: wordle}", "batch_size=2", "held_out.examples=2"),
}
TOY_RUNS = {
    "plain": (),
    "full": ("space=full",),
    "full_adam": ("space=full", "strategy.optimizer=adam"),
    "adam_decay": ("strategy.optimizer={kind: adam, weight_decay: 0.1}",),
    "sgd_momentum": ("strategy.optimizer={kind: sgd, momentum: 0.9}",),
    "independent": ("strategy.antithetic=false",),
    "ranks": ("shaping=centered_ranks",),
    "log_rank": ("shaping=log_rank",),
    "raw": ("shaping=raw",),
    "per_example": ("shaping={kind: per_example, scale: std}",),
    "population_1": (
        "strategy.population=1",
        "strategy.antithetic=false",
        "strategy.baseline=running",
        "shaping=raw",
    ),
    "linear_sigma": ("strategy.sigma={kind: linear, start: 0.3, end: 0.1}",),
    "cosine_rate": ("strategy.learning_rate={kind: cosine, start: 0.3, end: 0.1}",),
    "success": ("strategy.sigma={kind: success, start: 0.3}",),
    "plateau": ("strategy.sigma={kind: plateau, start: 0.3}",),
    "cma": (
        "strategy={kind: cma, population: 6, sigma: 0.3}",
        "space={kind: subspace, dimension: 4}",
    ),
    "sep_cma": (
        "strategy={kind: sep_cma, population: 6, sigma: 0.3}",
        "space={kind: subspace, dimension: 4}",
    ),
    "two_engines": ("fleet.engines=2", "microbatch.rows=6"),
    "two_engines_adam": (
        "fleet.engines=2",
        "microbatch.rows=6",
        "space=full",
        "strategy.optimizer=adam",
    ),
    "prompt_search": (
        "task.temperature=0",
        "prompt_search={template: ['{prompt}', 'So: {prompt}'], temperature: [0, 0.7, 1.0]}",
    ),
    "kl": ("task.kl_coef=0.5",),
    "kl_two_engines": ("task.kl_coef=0.5", "fleet.engines=2", "microbatch.rows=6"),
    "randopt": (
        "strategy={population: 6, sigma: 0.3}",
        "space=full",
        "method={kind: randopt, ensemble_size: 3}",
    ),
    "text_penalty": ("task.scorers.short={kind: length, start: 0, end: 12, weight: -1}",),
    "seed_7": ("seed=7",),
    "microbatch": ("microbatch={members: 2, examples: 3}",),
    "wordle": ("task={kind: wordle, max_new_tokens: 4}", "held_out.examples=2"),
}
RESUMED = ("plain", "full_adam", "cma", "prompt_search", "kl", "success", "randopt", "two_engines")
NANO_RESUMED = ("auto", "zo_grpo", "zo_grpo_updates", "es_sample_gd", "bf16")
FORKED = ("plain", "full_adam")


def lines(part: str) -> dict[str, str]:
    """Return the hash of every run by its name; a run that cannot begin has its error's class."""
    runs = {
        **{f"toy/{name}": (TOY, given) for name, given in TOY_RUNS.items()},
        **{f"nano/{name}": (NANO, (*FIXED, *given)) for name, given in NANO_SPACES.items()},
        **{f"nano/{name}": (NANO, given) for name, given in NANO_RUNS.items()},
    }
    runs = {name: run for name, run in runs.items() if part in name}
    found, began = {}, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name, (base, given) in runs.items():
            found[name] = _line(Path(folder, name), base, given)
            print(f"{time.monotonic() - began:5.0f} s {name} {found[name]}", flush=True)
        for engine, names in (("toy", RESUMED), ("nano", NANO_RESUMED)):
            for name in names:
                if f"{engine}/{name}" not in runs:
                    continue
                base, given = runs[f"{engine}/{name}"]
                found[f"{engine}/{name}/resumed"] = _line(
                    Path(folder, engine, name, "resumed"), base, given, stop_after=1
                )
        for name in FORKED:
            if f"toy/{name}" not in runs:
                continue
            whole = Path(folder, "toy", name)
            forked = Path(folder, "toy", name, "forked")
            found[f"toy/{name}/forked"] = _outcome(
                germline.fork(whole, 2, ("strategy.learning_rate=0.05",), out=forked)
            )
    return found


def _line(path: Path, base: Mapping[str, Any], given: tuple[str, ...], stop_after: int = 0) -> str:
    try:
        training = germline.train(germline.load_config(base, given), path)
        if stop_after:
            for _ in training:
                training.stop()
                break
            training = germline.resume(path)
        return _outcome(training)
    except germline.GermlineError as error:
        return f"{type(error).__name__}: {error}"


def _outcome(training: germline.Training) -> str:
    """Return the hash of a run that is played to its end."""
    numbers = []
    for record in training:
        numbers.append([record.generation, *map(_hex, record.fitness)])
    directory = training.directory
    scores = [_hex(row.score.mean) for row in directory.held_out()]
    digest = germline.replay(directory.path, -1)
    return hashlib.sha256(json.dumps([numbers, scores, digest]).encode()).hexdigest()[:16]


def _hex(value: float) -> str:
    return float(value).hex()


def main(task: str, path: str, part: str = "") -> int:
    """Record the runs in a file, or compare them with it; return the exit status."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with grading_in_process():
        found = lines(part)
    if task == "record":
        Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")
        return 0
    recorded = json.loads(Path(path).read_text(encoding="utf-8"))
    recorded = {name: line for name, line in recorded.items() if part in name}
    names = [name for name in recorded if recorded[name] != found.get(name)]
    for name in names:
        print(f"DIFFERS: {name}: {recorded[name]} -> {found.get(name)}")
    print(f"{len(recorded) - len(names)} of {len(recorded)} runs are the same")
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
