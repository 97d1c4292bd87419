"""Tokens per second of a population with every engine, and with Hugging Face, PEFT and vLLM alone.

    eval "$(make engines)"                  # builds and names the environments of the engines
    python -m benchmarks.engines            # the tables of docs/benchmarks.md
    python -m benchmarks.engines --groups "hugging face" --repeats 3
    python -m benchmarks.engines --cuda     # on a GPU, with CUDA builds of vLLM and SGLang in the
                                            # named environments; it was never run on a GPU

16 members x 16 prompts x 32 new tokens in fp32 on one thread. Members are adapters of rank 1 on all
linear layers of the nano model, and of a model of 22 million random weights. On a GPU the model has
the shape of Qwen2.5-0.5B, in bf16.

Every environment has a process of its own, which also measures the inprocess engine. Within a
process variants take turns and medians are compared; see benchmarks/engine_variants.py.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.engine_variants import CLOCKS, GROUPS, TOKENS
from benchmarks.shapes import BENCH, QWEN, save_random
from germline.nano import NANO_DIR

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {**BENCH, **QWEN}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="A population with every engine.")
    parser.add_argument("--models", nargs="+", choices=["nano", *SHAPES])
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: CPU seconds of the process, which vary less on a shared machine; not for "
        "servers",
    )
    parser.add_argument("--cuda", action="store_true", help="on a GPU, with CUDA engines")
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name() if arguments.cuda else "1 thread"
    print(
        f"{device}, torch {torch.__version__}, medians of {arguments.repeats}, "
        f"{arguments.clock} time\n"
    )
    print("| model | process | variant | seconds | tokens/s | inprocess / it |")
    print("|---|---|---|---|---|---|")
    options = ["--repeats", str(arguments.repeats), "--clock", arguments.clock]
    options += ["--cuda"] if arguments.cuda else []
    for name in arguments.models or (["0.5B"] if arguments.cuda else ["nano", *BENCH]):
        with tempfile.TemporaryDirectory() as folder:
            model = endless(name, Path(folder) / "model")
            for group in arguments.groups:
                found = measured(group, model, options)
                for line in rows(name, group, found):
                    print(line, flush=True)


def rows(model: str, group: str, found: dict[str, float] | str) -> list[str]:
    """Return the table rows of a group's measurements, or of the reason there are none."""
    if isinstance(found, str):
        return [f"| {model} | {group} | {found} | | | |"]
    first = found["inprocess"]
    return [
        f"| {model} | {group} | {name} | {seconds:.3f} | {TOKENS / seconds:,.0f} | "
        f"{seconds / first:.2f} |"
        for name, seconds in found.items()
    ]


def measured(group: str, model: Path, options: Sequence[str]) -> dict[str, float] | str:
    """Time a group in a process; return median seconds, or the reason it cannot run."""
    python = sys.executable
    if group != "hugging face":
        variable = f"GERMLINE_{group.upper()}_PYTHON"
        if variable not in os.environ:
            return f"not measured: ${variable} is not set"
        python = os.environ[variable] if group == "vllm" else python
    output = model.parent / "measured.json"
    command = [python, "-m", "benchmarks.engine_variants", group, str(model), str(output)]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        | ({} if "--cuda" in options else {"OMP_NUM_THREADS": "1"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{group}: ended with status {done.returncode}\n{done.stdout[-6000:]}")
    found: dict[str, float] = json.loads(output.read_text())
    return found


def endless(name: str, folder: Path) -> Path:
    """Write a model without an end token."""
    if name in SHAPES:
        save_random(SHAPES[name], folder)
        return folder
    shutil.copytree(NANO_DIR, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for file, setting in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {setting: None}))
    return folder


if __name__ == "__main__":
    main()
