"""Compare the memory and seconds that `germline doctor --config` estimates with those of a run.

    python -m benchmarks.estimates                       # docs/benchmarks.md: about 15 minutes
    python -m benchmarks.estimates --cases nano/float32/low_rank 22M/float32/full
    python -m benchmarks.estimates --through train      # what `germline train --dry-run` announces
    python -m benchmarks.estimates --through calibrated # the same with strategy.sigma=auto

Models have random weights in the shapes of published ones. For every case, one process measures the
machine and computes the estimate. Another process loads the model and trains for two generations;
its peak resident memory and the seconds of the second generation are measured. Both use the same
clock. Completions have their full length, as the estimate assumes.

With `--through train` the estimate is that of `germline.run.dry_run`, and the run is one of
`germline.train` with its graders, held-out scores, TensorBoard and report; its memory is that of
the process that trains, graders not included. With `--through calibrated` sigma is calibrated
before the first generation, which is a part of the memory and not of the seconds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks import published_shapes, shapes
from benchmarks.memory import resident_peak
from benchmarks.population import CLOCKS
from benchmarks.real_sizes import SIGMA, Graders, Work
from germline.config import Config, load_config
from germline.engines.prompt_batch import encode_prompt, pad_prompts
from germline.estimates.estimate import estimate
from germline.estimates.hardware import measure_cpu
from germline.estimates.memory import resident_peak as estimated_peak
from germline.estimates.model_shape import shape_of
from germline.estimates.workload import TextLengths
from germline.fleet import LocalFleet
from germline.record import RunDirectory
from germline.run import train
from germline.run.build_parts import make_engine
from germline.run.dry_run import dry_run
from germline.run.peak_memory import peak_memory_mb
from germline.shaping import utilities
from germline.strategies import make_strategy
from germline.training import generations
from germline.types import Decoding

OWN = {
    "nano": shapes.Shape("nano", 128, 384, 4, 2, 1, 1023),
    "22M": shapes.BENCH["22M"],
}
"""Shapes stored in fp32; the shapes of `benchmarks/real_sizes.py` are stored in bf16."""

CASES = (
    "nano/float32/low_rank",
    "nano/float32/full",
    "22M/float32/low_rank",
    "22M/float32/full",
    "22M/bfloat16/lora",
    "Qwen2.5-0.5B/bfloat16/low_rank",
    "Qwen2.5-0.5B/bfloat16/lora",
    "Qwen2.5-0.5B/bfloat16/full",
    "Qwen2.5-0.5B/float32/low_rank",
    "Llama-3.2-1B/bfloat16/low_rank",
    "Llama-3.2-1B/bfloat16/lora",
)
GOALS = {"loop": (0.10, 0.30), "train": (0.15, 0.30), "calibrated": (0.15, 0.30)}
"""Largest errors of memory and seconds aimed at: against the loop, and a whole training."""

KINDS = {
    "loop": ("estimate", "run"),
    "train": ("dry-run", "train"),
    "calibrated": ("calibrated dry-run", "calibrated train"),
}
"""What one process computes and another one measures."""


@dataclass(frozen=True)
class Found:
    """Bytes and seconds, estimated or measured."""

    peak: float
    seconds: float


def main() -> None:
    """Print the table; with `--measure`, measure or estimate one case and print JSON."""
    parser = argparse.ArgumentParser(description="Compare estimates with runs.")
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--through", choices=GOALS, default="loop")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "JSON"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, text = arguments.measure
        work = Work(**json.loads(text))
        print(json.dumps(asdict(MEASUREMENTS[what](work))))
        return
    for line in report(arguments):
        print(line, flush=True)


def report(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table, one case after another."""
    yield (
        f"{datetime.now(UTC):%Y-%m-%d}, {arguments.members} members x {arguments.prompts} prompts "
        f"x {arguments.tokens} new tokens, {arguments.threads} threads, torch {torch.__version__}, "
        f"medians of {arguments.repeats}, {arguments.clock} time\n"
    )
    yield (
        "| shape | dtype | space | memory, GB | estimated | error | generation, s | estimated | "
        "error |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    worst = {"memory": 0.0, "seconds": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        for case in arguments.cases:
            shape, dtype, space = case.split("/")
            place = saved(shape, Path(folder))
            work = Work(
                *(str(place), dtype, space, arguments.members, arguments.prompts),
                *(arguments.tokens, 1, arguments.threads, arguments.clock),
            )
            guess, truth = in_turn(work, arguments.repeats, KINDS[arguments.through])
            errors = guess.peak / truth.peak - 1, guess.seconds / truth.seconds - 1
            for name, error in zip(worst, errors, strict=True):
                worst[name] = max(worst[name], abs(error))
            yield row(case, guess, truth, errors)
    memory, seconds = GOALS[arguments.through]
    met = worst["memory"] <= memory and worst["seconds"] <= seconds
    yield (
        f"\nLargest errors: memory {worst['memory']:.0%} (goal {memory:.0%}), seconds "
        f"{worst['seconds']:.0%} (goal {seconds:.0%}): {'met' if met else 'not met'}."
    )


def row(case: str, guess: Found, truth: Found, errors: tuple[float, float]) -> str:
    """Return one line of the table."""
    cells = (
        *case.split("/"),
        *(f"{truth.peak / 1e9:.3f}", f"{guess.peak / 1e9:.3f}", f"{errors[0]:+.0%}"),
        *(f"{truth.seconds:.3g}", f"{guess.seconds:.3g}", f"{errors[1]:+.0%}"),
    )
    return f"| {' | '.join(cells)} |"


def saved(shape: str, folder: Path) -> Path:
    """Write a random model unless it exists."""
    place = folder / shape
    if not place.exists():
        for other in folder.iterdir():  # one model at a time: they are large
            for file in other.iterdir():
                file.unlink()
            other.rmdir()
        if shape in OWN:
            shapes.save_random(OWN[shape], place)
        else:
            published_shapes.save_random(shape, place)
    return place


def in_turn(work: Work, repeats: int, kinds: tuple[str, str]) -> tuple[Found, Found]:
    """Estimate and measure by turns, each in a process of its own; return the medians."""
    pairs = [tuple(in_a_process(kind, work) for kind in kinds) for _ in range(repeats)]
    guesses, truths = zip(*pairs, strict=True)
    return _median(guesses), _median(truths)


def _median(every: Sequence[Found]) -> Found:
    return Found(
        statistics.median(one.peak for one in every),
        statistics.median(one.seconds for one in every),
    )


def in_a_process(what: str, work: Work) -> Found:
    """Estimate or measure once, in a new Python."""
    command = [sys.executable, "-m", "benchmarks.estimates", "--measure", what]
    done = subprocess.run(
        [*command, json.dumps(asdict(work))], stdout=subprocess.PIPE, text=True, check=True
    )
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def estimated(work: Work) -> Found:
    """Measure the machine and compute the estimate."""
    torch.set_num_threads(work.threads)
    shape, config = shape_of(work.folder), work.config()
    machine = measure_cpu(getattr(torch, work.dtype), shape.hidden, shape.inner, CLOCKS[work.clock])
    tokenizer = AutoTokenizer.from_pretrained(work.folder)
    prompts = [encode_prompt(tokenizer, example) for example in work.examples()]
    longest, prefix = max(map(len, prompts)), len(pad_prompts(prompts, 0).prefix)
    texts = TextLengths(len(prompts), longest, prefix, work.tokens)
    found = estimate(config, shape, texts, machine)
    return Found(estimated_peak(list(found.parts)), found.seconds.total)


def measured(work: Work) -> Found:
    """Train for two generations; return the peak memory and the seconds of the second one."""
    torch.set_num_threads(work.threads)
    config, examples = work.config(), work.examples()
    engine = make_engine(config)
    fleet = LocalFleet(engine, Graders(), config.microbatch)
    digest = fleet.digest()
    strategy = make_strategy(config.strategy, run_seed=0, generations=2)
    limits, shape = Decoding(work.tokens), partial(utilities, config.shaping)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run", config, digest, work.threads)
        begun = work.now()
        for record in generations(strategy, shape, fleet, lambda _: examples, limits, range(2)):
            directory.write(record, examples, peak_memory_mb())
            seconds, begun = work.now() - begun, work.now()
        directory.release_lock()
    return Found(resident_peak(), seconds)


def announced(work: Work, sigma: float | str = SIGMA) -> Found:
    """Return what a dry run announces."""
    torch.set_num_threads(work.threads)
    config = trained_config(work, sigma)
    found = dry_run(config, Path("not-written"), CLOCKS[work.clock]).estimate
    assert found is not None
    return Found(estimated_peak(list(found.parts)), found.seconds.total)


def trained(work: Work, sigma: float | str = SIGMA) -> Found:
    """Train as a user does: the peak of the process, and the second of three generations."""
    torch.set_num_threads(work.threads)
    with tempfile.TemporaryDirectory() as folder:
        seconds, begun = 0.0, 0.0
        for record in train(trained_config(work, sigma), Path(folder) / "run"):
            if record.generation == 1:  # the last one also writes a snapshot
                seconds = work.now() - begun
            begun = work.now()
    return Found(resident_peak(), seconds)


def trained_config(work: Work, sigma: float | str) -> Config:
    """Return the config of a whole training: with held-out scores before and after it."""
    changes = {"generations": 3, "held_out": {"examples": work.prompts, "every": 100}}
    settings = work.config().model_dump() | changes
    return load_config(settings | {"strategy": {"population": work.members, "sigma": sigma}})


MEASUREMENTS: dict[str, Callable[[Work], Found]] = {
    "estimate": estimated,
    "run": measured,
    "dry-run": announced,
    "train": trained,
    "calibrated dry-run": partial(announced, sigma="auto"),
    "calibrated train": partial(trained, sigma="auto"),
}

if __name__ == "__main__":
    main()
