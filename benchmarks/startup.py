"""Startup time: importing germline, and running commands such as `germline --help`.

    python -m benchmarks.startup
    python -m benchmarks.startup --shape Qwen2.5-0.5B --clock cpu --rounds 3

Every command runs in a Python process of its own. The commands take turns, so that other programs
slow all of them, and medians are compared with those of `python -c pass` of the same rounds.
Promised: `import germline` in under 0.3 s, `germline --help` in under 0.5 s.

With `--shape`, a model with random weights in bf16 is loaded instead, from the start of Python on:
by `from_pretrained` of transformers, which then reads every weight once, as it only maps the file;
and as a run of germline starts, up to the first token of one prompt, digest included. Promised: at
most 3 times the former.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NOTHING = "python -c pass"
COMMANDS = {
    NOTHING: ["-c", "pass"],
    "import germline": ["-c", "import germline"],
    "germline --help": ["-m", "germline", "--help"],
    "germline train --help": ["-m", "germline", "train", "--help"],
    "germline list tasks": ["-m", "germline", "list", "tasks"],
    "germline train nowhere.yaml": ["-m", "germline", "train", "nowhere.yaml"],
    "germline.load_config({})": ["-c", "import germline; germline.load_config({})"],
    "import torch": ["-c", "import torch"],
    "germline.train": ["-c", "import germline; germline.train"],
}
"""Label -> arguments of Python; the last two are for comparison."""

PROMISED_S = {"import germline": 0.3, "germline --help": 0.5}


TRANSFORMERS = "transformers"
SPACES = ("low_rank", "lora")


def main() -> None:
    """Print the table; with `--load`, load a model and end."""
    parser = argparse.ArgumentParser(description="Time the start of germline's commands.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", help="of a model that is loaded; see published_shapes.py")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--load", nargs=2, metavar=("FOLDER", "HOW"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        folder, how = arguments.load
        load_with_transformers(folder) if how == TRANSFORMERS else start(folder, how)
        return
    print(f"medians of {arguments.rounds} rounds, Python {sys.version.split()[0]}, ", end="")
    print(f"{arguments.clock} time\n")
    if arguments.shape:
        print_loads(arguments.shape, arguments.rounds, arguments.clock)
    else:
        print_commands(arguments.rounds, arguments.clock)


def print_commands(rounds: int, clock: str) -> None:
    """Print the table of commands."""
    seconds = medians(COMMANDS, rounds, clock)
    print("| command | s | above `python -c pass`, s | promised, s |")
    print("|---|---|---|---|")
    for label, median in seconds.items():
        promised = f"under {PROMISED_S[label]}" if label in PROMISED_S else ""
        print(f"| `{label}` | {median:.3f} | {median - seconds[NOTHING]:.3f} | {promised} |")


def print_loads(shape: str, rounds: int, clock: str) -> None:
    """Print the table of loading a model."""
    from benchmarks.published_shapes import save_random

    with tempfile.TemporaryDirectory() as folder:
        save_random(shape, Path(folder))
        load = ["-m", "benchmarks.startup", "--load", folder]
        ways = {how: [*load, how] for how in (TRANSFORMERS, *SPACES)}
        seconds = medians(ways, rounds, clock)
    print(f"| {shape} | s | times transformers |\n|---|---|---|")
    for how, median in seconds.items():
        print(f"| {how} | {median:.2f} | {median / seconds[TRANSFORMERS]:.2f} |")


def load_with_transformers(folder: str) -> None:
    """Load a model in bf16 and read every weight."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    for parameter in model.parameters():
        parameter.sum()


def start(folder: str, space: str) -> None:
    """Do what a run does before its first generation, and generate one token."""
    from germline import load_config
    from germline.run.build_parts import make_engine
    from germline.types import Decoding, Example

    engine = {"kind": "inprocess", "device": "cpu", "dtype": "bfloat16"}
    config = load_config({"model": folder, "task": "conciseness", "space": space, "engine": engine})
    loaded = make_engine(config)
    loaded.weights.digest()
    loaded.generate([None], [Example(0, "What is 7 + 8?", "", chat=True)], Decoding(1))


def medians(ways: dict[str, list[str]], rounds: int, clock: str) -> dict[str, float]:
    """Time every command once per round; return the median of each."""
    seconds: dict[str, list[float]] = {label: [] for label in ways}
    for number in range(rounds + 1):
        for label, arguments in ways.items():
            took = timed(arguments, clock)
            if number:  # the first round fills the caches of Python and of the disk
                seconds[label].append(took)
    return {label: statistics.median(values) for label, values in seconds.items()}


def timed(arguments: list[str], clock: str) -> float:
    """Run Python once and return its seconds, including start and end.

    Raises:
        RuntimeError: it failed; a command that refuses its arguments (status 2) did not.
    """
    began = _now(clock)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2):
        raise RuntimeError(done.stderr)
    return _now(clock) - began


def _now(clock: str) -> float:
    """Return seconds of the clock, or those that ended processes used of the processor."""
    if clock == "wall":
        return time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
