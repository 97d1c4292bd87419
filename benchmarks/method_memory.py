"""Peak memory of methods with and without backpropagation, on the same sequences.

    python -m benchmarks.method_memory                              # docs/results.md
    python -m benchmarks.method_memory --shapes nano --only es_lora grpo_lora

Each figure is the peak resident memory of a fresh process that trains two generations: in the
second one the moments of the optimizer are in memory too. It includes loading, libraries (TRL for
GRPO, about 0.3 GB) and mapped files. Every method generates the same number
of completions, all of the same length: the models have no end token. GRPO reads `--rows`
completions per backward pass, 1 by default, which takes the least memory; its weights, fp32 masters
and moments of Adam are shared with the engine, so that nothing is there twice.
"""

import argparse
import itertools
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.published_shapes import SHAPES, prompts, save_random

SMOLLM2 = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct"
MODELS = {"nano": "nano", "SmolLM2-135M": str(SMOLLM2)}
"""Models with weights of their own; the others are random in a shape."""

ES = {"strategy": {"sigma": 1e-3, "learning_rate": 1e-3}}
SCORED = {"method": {"kind": "zo_grpo", "rows_per_member": 4}}


def methods(rows: int) -> dict[str, dict[str, Any]]:
    """Return the settings of every method, by its name in the table."""

    def grpo(space: str, **args: bool) -> dict[str, Any]:
        return {"space": space, "method": {"kind": "grpo", "rows": rows, "args": args}}

    return {
        "es_low_rank": {**ES, "space": "low_rank"},
        "es_lora": {**ES, "space": "lora"},
        "es_full": {**ES, "space": "full"},
        "zo_grpo_low_rank": {**ES, **SCORED, "space": "low_rank"},
        "zo_grpo_lora": {**ES, **SCORED, "space": "lora"},
        "grpo_full": grpo("full"),
        "grpo_full_checkpointing": grpo("full", gradient_checkpointing=True),
        "grpo_lora": grpo("lora"),
        "grpo_lora_checkpointing": grpo("lora", gradient_checkpointing=True),
    }


def settings(method: str, model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the config of a run: as many completions for every method."""
    config = methods(arguments.rows)[method]
    sizes = {"strategy": {"population": arguments.group}, "method": {"group_size": arguments.group}}
    return {
        "model": model,
        "task": {"kind": "rows", "max_new_tokens": arguments.tokens},
        "batch_size": arguments.prompts,
        "generations": 2,
        "held_out": {"examples": 1, "every": 2},
        "engine": {"kind": "inprocess", "device": "cpu", "threads": 1},
        "record": {"tensorboard": False, "keep_snapshots": 0},
        **{
            name: {**one, **sizes.get(name, {})} if isinstance(one, dict) else one
            for name, one in config.items()
        },
    }


def save_endless(model: str, folder: Path) -> None:
    """Write a model without an end token, so that all completions have the same length."""
    if model in SHAPES:
        save_random(model, folder)
        return
    from germline.config.config_files import model_source

    loaded = AutoModelForCausalLM.from_pretrained(model_source(MODELS[model]), dtype="auto")
    loaded.generation_config.eos_token_id = loaded.config.eos_token_id = None
    loaded.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(model_source(MODELS[model]))
    tokenizer.pad_token, tokenizer.eos_token = tokenizer.pad_token or tokenizer.eos_token, None
    tokenizer.save_pretrained(folder)


def in_a_process(config: dict[str, Any]) -> dict[str, float]:
    """Train in a new Python; return its peak in GB, and the tokens that it generated."""
    command = [sys.executable, "-m", "benchmarks.method_memory", "--measure", json.dumps(config)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(config: dict[str, Any]) -> dict[str, float]:
    """Train in this process."""
    import germline

    logging.disable(logging.WARNING)  # that the reward below is no usual one
    count = itertools.count()

    def reward(_completion: str, _example: object) -> float:
        return float(next(count) % 7)  # so that no generation is without a signal

    data = [{"prompt": example.prompt} for example in prompts(2 * config["batch_size"])]
    with tempfile.TemporaryDirectory() as folder:
        run = germline.train(config, Path(folder) / "run", reward=reward, data=data).run().directory
        rows = run.generations()
        assert not any(row["zero_signal"] for row in rows), "the memory of an update is missing"
        peak = max(row["peak_memory_mb"]["host"] for row in rows)
        return {"peak_gb": peak / 1e3, "tokens": rows[-1]["budget"]["tokens"]}


def report(shapes: Sequence[str], arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| model | method | tokens | peak, GB | share of the least GRPO full |"
    yield "|---|---|---|---|---|"
    for shape in shapes:
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            save_endless(shape, Path(folder))
            for method in arguments.only or methods(arguments.rows):
                config = settings(method, folder, arguments)
                config["engine"]["dtype"] = "float32" if shape == "nano" else "bfloat16"
                found[method] = in_a_process(config)
                print(shape, method, found[method], file=sys.stderr, flush=True)
        full = [one["peak_gb"] for name, one in found.items() if name.startswith("grpo_full")]
        for name, one in found.items():
            share = f"{one['peak_gb'] / min(full):.0%}" if full else ""
            yield f"| {shape} | `{name}` | {one['tokens']:.0f} | {one['peak_gb']:.2f} | {share} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare the peak memory of methods.")
    parser.add_argument("--shapes", nargs="+", default=[*MODELS, "Qwen2.5-0.5B"])
    parser.add_argument("--only", nargs="+", metavar="METHOD")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=4, help="members, or samples of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="length of a completion")
    parser.add_argument("--rows", type=int, default=1, help="completions per backward pass of GRPO")
    parser.add_argument("--measure", metavar="JSON", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measured(json.loads(arguments.measure))))
        return
    for line in report(arguments.shapes, arguments):
        print(line, flush=True)


if __name__ == "__main__":
    main()
