"""Time and memory of one generation of models of real sizes, compared with the usual loop.

    python -m benchmarks.real_sizes                                  # everything: hours on 2 cores
    python -m benchmarks.real_sizes --shapes Qwen2.5-0.5B            # docs/results.md
    python -m benchmarks.real_sizes --shapes Gemma-3-1B --dtypes bfloat16 --variants plain lora

Weights are random, drawn once per shape and saved in bf16; the shapes are those of the published
`config.json` files. Every measurement has a process of its own. Variants run in turn, several
times, and medians are compared: so memory is that of one variant, and other programs slow all
variants. Each process generates a few tokens before it is timed. With `--device cuda` the peak is
that of the tensors on the GPU.

- field: perturb in place, Hugging Face `generate`, restore (`benchmarks/field_way.py`). Its members
  are independent, so some of them are timed and the seconds are scaled to all.
- plain: this project's engine on the same rows without perturbations, loaded without a space.
- low_rank, lora, full: a generation of the training loop with the default settings of that space.
- floor: the matrix products of the linear layers alone.
- vllm: as low_rank, with vLLM as the engine, in the environment that `make engines` names; it is
  measured only if `--variants` contains it.

`generation` is the time of generating completions, including noise; `outside` is the rest of a
generation of training: shaping, signals, update, digest, and the record on disk. `start` is the
time of loading the model, of the first digest of a space, and of the first token of one prompt; for
field it is `from_pretrained` alone, which maps files, and for floor also reading each weight once.
`peak` is the peak resident memory of the process, including mapped files.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.field_way import evaluate_one_at_a_time, linear_floor
from benchmarks.memory import resident_peak
from benchmarks.population import CLOCKS
from benchmarks.published_shapes import SHAPES, prompts, save_random
from germline.config import Config, MicrobatchSettings, load_config
from germline.engines.prompt_batch import encode_prompt, pad_prompts
from germline.fleet import LocalFleet
from germline.generation_loop import generations
from germline.methods.method import Method
from germline.protocols import Engine
from germline.record import RunDirectory
from germline.rollout import evaluate_members, members_per_microbatch
from germline.run.build_parts import make_engine
from germline.run.observers import peak_memory_mb
from germline.shaping import utilities
from germline.strategies import make_strategy
from germline.types import Decoding, Evaluation, Example, Grade, Population

VARIANTS = ("field", "plain", "low_rank", "lora", "full", "floor")
SPACES = ("low_rank", "lora", "full")
VLLM = "vllm"
DTYPES = ("bfloat16", "float32")
SIGMA = 0.001
CONTEXT = "What is 7 + 8? The answer is 15. "
"""Sentences that long prompts repeat `--context` times."""


@dataclass(frozen=True)
class Work:
    """The measurement of one process.

    Attributes:
        folder: folder of the saved model.
        field_members: members that `field` evaluates; its seconds are scaled to all.
        context: number of repeats of `CONTEXT` in each prompt.
        question_first: the context comes last, so that prompts have no common beginning.
    """

    folder: str
    dtype: str
    variant: str
    members: int
    prompts: int
    tokens: int
    field_members: int
    threads: int
    clock: str
    context: int = 0
    question_first: bool = False
    device: str = "cpu"

    def now(self) -> float:
        """Return seconds since a fixed time."""
        return CLOCKS[self.clock]()

    def timed(self, work: Callable[[], object]) -> float:
        """Return the seconds of a call."""
        begun = self.now()
        work()
        return self.now() - begun

    def examples(self) -> list[Example]:
        """Return the prompts of a generation."""
        texts = ((CONTEXT * self.context, example.prompt) for example in prompts(self.prompts))
        ordered = (text[::-1] if self.question_first else text for text in texts)
        return [Example(i, " ".join(text), "", chat=True) for i, text in enumerate(ordered)]

    def config(self) -> Config:
        """Return the settings of the run, with the defaults of the space."""
        space = self.variant if self.variant in SPACES else "low_rank"
        engine: dict[str, object] = {"kind": "inprocess", "device": self.device}
        if self.variant == VLLM:
            options = {"kv_cache_memory_bytes": 500_000_000}
            engine = {"kind": VLLM, "adapters": self.members, "options": options}
        return load_config(
            {
                "model": self.folder,
                "task": {"kind": "conciseness", "max_new_tokens": self.tokens},
                "space": space,
                "strategy": {"population": self.members, "sigma": SIGMA},
                "engine": engine | {"dtype": self.dtype, "threads": self.threads},
                "batch_size": self.prompts,
                "generations": 1,
            }
        )


@dataclass(frozen=True)
class Measured:
    """Seconds and bytes of one process."""

    startup_timeout_s: float
    generation_s: float
    outside_s: float | None
    peak: float


class Graders:
    """Rewards that differ from text to text, at no cost."""

    max_turns: int | None = None

    def __init__(self) -> None:
        self._count = itertools.count()

    def submit(self, texts: Sequence[object], examples: Sequence[Example]) -> Future[list[Grade]]:
        """Return at once."""
        done: Future[list[Grade]] = Future()
        done.set_result([Grade(float(next(self._count) % 7), {}) for _ in texts])
        return done


class TimedFleet(LocalFleet):
    """Measures the seconds in which the members generate."""

    def __init__(self, engine: Engine, work: Work, microbatch: MicrobatchSettings) -> None:
        super().__init__(engine, Graders(), microbatch)
        self.work = work
        self.seconds = 0.0

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Generate, and add the seconds."""
        begun = self.work.now()
        evaluation = super().evaluate(population, batch, decoding)
        self.seconds += self.work.now() - begun
        return evaluation


def main() -> None:
    """Print the table; with `--measure`, measure once and print JSON."""
    parser = argparse.ArgumentParser(description="Time and memory of a generation at real sizes.")
    published = [name for name in SHAPES if name != "tiny"]
    parser.add_argument("--shapes", nargs="+", default=published, choices=SHAPES)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=(*VARIANTS, VLLM))
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="new tokens of each text")
    parser.add_argument("--context", type=int, default=0, help="sentences of 15 tokens before it")
    parser.add_argument("--question-first", action="store_true", help="prompts share no prefix")
    parser.add_argument("--field-members", type=int, default=2, help="timed of the field's way")
    parser.add_argument("--repeats", type=int, default=3, help="processes per figure")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: CPU seconds of all threads, which vary less on a shared machine",
    )
    parser.add_argument("--measure", metavar="JSON", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(asdict(measured(Work(**json.loads(arguments.measure))))))
        return
    for line in report(arguments):
        print(line, flush=True)


def report(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table, one model after another."""
    sizes = {
        name: getattr(arguments, name)
        for name in (
            *("members", "prompts", "tokens", "field_members", "threads", "clock"),
            *("context", "question_first", "device"),
        )
    }
    yield (
        f"{datetime.now(UTC):%Y-%m-%d}, {sizes['members']} members x {sizes['prompts']} prompts x "
        f"{sizes['tokens']} new tokens, {_processor(arguments)}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, medians of {arguments.repeats} processes, "
        f"{arguments.clock} time\n"
    )
    yield (
        "| shape | dtype | variant | generation, s | outside, s | start, s | peak, GB | "
        "plain / it | field / it | floor / it |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for shape in arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            save_random(shape, Path(folder))
            for dtype in arguments.dtypes:
                works = [Work(folder, dtype, variant, **sizes) for variant in arguments.variants]
                yield from rows(shape, dtype, in_turn(works, arguments.repeats))


def _processor(arguments: argparse.Namespace) -> str:
    """Name the GPU, or the number of threads."""
    if arguments.device == "cpu":
        return f"{arguments.threads} threads"
    return torch.cuda.get_device_name()


def in_turn(works: Sequence[Work], repeats: int) -> dict[str, Measured]:
    """Measure all variants in turn, several times; return medians."""
    found: dict[str, list[Measured]] = {work.variant: [] for work in works}
    for _ in range(repeats):
        for work in works:
            found[work.variant].append(in_a_process(work))
    return {variant: _median(every) for variant, every in found.items()}


def in_a_process(work: Work) -> Measured:
    """Measure once, in a new Python."""
    python = os.environ["GERMLINE_VLLM_PYTHON"] if work.variant == VLLM else sys.executable
    command = [python, "-m", "benchmarks.real_sizes", "--measure"]
    done = subprocess.run(
        [*command, json.dumps(asdict(work))], stdout=subprocess.PIPE, text=True, check=True
    )
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _median(every: Sequence[Measured]) -> Measured:
    outside = [one.outside_s for one in every if one.outside_s is not None]
    return Measured(
        startup_timeout_s=statistics.median(one.startup_timeout_s for one in every),
        generation_s=statistics.median(one.generation_s for one in every),
        outside_s=statistics.median(outside) if outside else None,
        peak=statistics.median(one.peak for one in every),
    )


def rows(shape: str, dtype: str, medians: dict[str, Measured]) -> Iterator[str]:
    """Yield one row per variant."""
    for variant, median in medians.items():
        ratios = [
            f"{medians[other].generation_s / median.generation_s:.2f}" if other in medians else ""
            for other in ("plain", "field", "floor")
        ]
        outside = "" if median.outside_s is None else f"{median.outside_s:.2f}"
        memory = "" if variant == "floor" else f"{median.peak / 1e9:.2f}"
        seconds = f"{median.generation_s:.2f}"
        start = f"{median.startup_timeout_s:.1f}"
        cells = (shape, dtype, variant, seconds, outside, start, memory, *ratios)
        yield f"| {' | '.join(cells)} |"


def measured(work: Work) -> Measured:
    """Measure in this process."""
    torch.set_num_threads(work.threads)
    if work.variant in ("field", "floor"):
        return _of_the_library(work)
    return _plain(work) if work.variant == "plain" else _of_a_space(work)


def _of_the_library(work: Work) -> Measured:
    """Time the usual loop, or the matrix products alone, on a plain Hugging Face model."""
    begun = work.now()
    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=getattr(torch, work.dtype))
    model.to(work.device)
    if work.variant == "floor":
        for parameter in model.parameters():
            parameter.sum()
    startup_timeout_s = work.now() - begun
    tokenizer = AutoTokenizer.from_pretrained(work.folder)
    tokenizer.pad_token_id = 0
    ids = [encode_prompt(tokenizer, example) for example in work.examples()]
    if work.variant == "field":
        padded = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")
        padded = padded.to(work.device)
        evaluate_one_at_a_time(model, padded, [0], SIGMA, 2)
        seeds = range(min(work.field_members, work.members))
        seconds = work.timed(
            lambda: evaluate_one_at_a_time(model, padded, seeds, SIGMA, work.tokens)
        ) * (work.members / len(seeds))
    else:
        products = _floor(model, work, ids)
        products()
        seconds = work.timed(products)
    return Measured(startup_timeout_s, seconds, None, _peak(work))


def _peak(work: Work) -> float:
    """Return the peak memory in bytes: of tensors on a GPU, else of the process."""
    return resident_peak() if work.device == "cpu" else float(torch.cuda.max_memory_allocated())


def _floor(model: Any, work: Work, ids: Sequence[Sequence[int]]) -> Callable[[], None]:
    microbatch = work.config().microbatch
    examples = min(microbatch.examples, work.prompts)
    return linear_floor(
        model,
        rows=work.members * work.prompts,
        prompt_tokens=max(len(one) for one in ids),
        new_tokens=work.tokens,
        microbatch_rows=members_per_microbatch(microbatch, work.prompts) * examples,
        shared=(len(pad_prompts(ids, 0).prefix), examples),
    )


def _plain(work: Work) -> Measured:
    """Time the batch without perturbations, in an engine without a space."""
    config, examples = work.config(), work.examples()
    begun = work.now()
    engine = make_engine(config, searched=False)
    engine.generate([None], examples[:1], Decoding(1))
    startup_timeout_s = work.now() - begun
    members = [None] * work.members
    engine.generate(members[:2], examples, Decoding(2))
    limits = Decoding(work.tokens)
    seconds = work.timed(
        lambda: evaluate_members(engine, Graders(), members, examples, config.microbatch, limits)
    )
    return Measured(startup_timeout_s, seconds, None, _peak(work))


def _of_a_space(work: Work) -> Measured:
    """Time a generation of training, including its record."""
    config, examples = work.config(), work.examples()
    begun = work.now()
    engine = make_engine(config)
    fleet = TimedFleet(engine, work, config.microbatch)
    digest = fleet.digest()
    engine.generate([None], examples[:1], Decoding(1))
    startup_timeout_s = work.now() - begun
    strategy = make_strategy(config.strategy, run_seed=0, generations=1)
    engine.generate(strategy.ask(0).members[:2], examples, Decoding(2))
    limits, shape = Decoding(work.tokens), partial(utilities, config.shaping)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run", config, digest, work.threads)
        begun = work.now()
        for record in generations(
            Method(strategy, shape), fleet, lambda _generation: examples, limits, range(1)
        ):
            directory.write(record, examples, peak_memory_mb())
        outside = work.now() - begun - fleet.seconds
        directory.release_lock()
    return Measured(startup_timeout_s, fleet.seconds, outside, _peak(work))


if __name__ == "__main__":
    main()
