"""Cost of the fleet layer in a generation: bytes between processes, and CPU seconds of its parts.

    python -m benchmarks.fleet_layer               # the tables of docs/benchmarks.md
    python -m benchmarks.fleet_layer --models 22M --populations 32

Each part is measured alone, in CPU seconds, and the smallest of a few repeats is reported: other
programs change these little, so small shares can be measured. They are compared with the CPU
seconds in which one engine generates the generation on one thread. The columns are

- names: names of members, coefficients of the update (to one engine), digests, envelopes;
- text: prompts and completions, as text and as tokens;
- pickling: pickling of jobs and answers, on both sides;
- weighing: counting these bytes;
- look: the digest after generating, which an engine in this process does not compute;
- asking: the round trip to a process, or to an actor on Ray, for every job.
"""

import argparse
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.shapes import BENCH, save_random
from benchmarks.variant_training import begin_training
from germline.comm_bytes import CommBytes
from germline.config import Config, load_config
from germline.fleet import byte_accounting
from germline.fleet.mirrored_search import as_member_ref, strip_offsets
from germline.fleet.remote_engine import JobDone
from germline.fleet.worker_jobs import ApplyJob, DigestJob, EngineJob, GenerateJob
from germline.protocols import Engine
from germline.rollout import cut_microbatches
from germline.run.build_fleet import remote_engine_factory, uses_mirrored_search
from germline.run.build_parts import make_decoding, make_engine
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Decoding, Example, Population

SEARCHES = {
    "low_rank, nes": ["space=low_rank", "strategy={sigma: 0.005, learning_rate: 0.01}"],
    "subspace, cma": ["space=subspace", "space.dimension=64", "strategy=cma"],
    "lora, sep_cma": ["space=lora", "strategy=sep_cma"],
}
REPEATS = 5


@dataclass(frozen=True)
class Layer:
    """The cost of a fleet of one remote engine in a generation.

    Attributes:
        numbers: number of searched numbers.
        jobs: number of jobs.
        generating: CPU seconds in which the engine generates.
        pieces: CPU seconds of each part of the fleet layer.
    """

    numbers: int
    members: int
    jobs: int
    traffic: CommBytes
    generating: float
    pieces: dict[str, float]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Bytes and seconds of the fleet layer.")
    parser.add_argument("--models", nargs="+", default=["nano", "22M"], choices=["nano", "22M"])
    parser.add_argument("--populations", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--searches", nargs="+", default=[*SEARCHES], choices=[*SEARCHES])
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"arithmetic, {arguments.batch} prompts, 16 new tokens, microbatches of an eighth of the "
        f"rows, 1 thread, torch {torch.__version__}, least of {REPEATS}\n"
    )
    print(
        "| model | search | numbers | members | names, kB/member | text, kB/member | generating, s "
        "| pickling | weighing | look | asking processes | asking Ray | added, processes "
        "| added, Ray |"
    )
    print("|" + "---|" * 14)
    asked = [asking(variant) for variant in ("processes-1", "ray-1")]
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            source = model if model == "nano" else save_random(BENCH[model], Path(folder) / model)
            for search in arguments.searches:
                for members in arguments.populations:
                    config = configured(source, SEARCHES[search], members, arguments.batch)
                    print(f"| {model} | {search} | {row(layer(config), asked)}", flush=True)


def configured(model: str, search: Sequence[str], members: int, batch: int) -> Config:
    """Return the config of a generation."""
    overrides = [
        f"model={model}",
        f"batch_size={batch}",
        f"strategy.population={members}",
        "engine.threads=1",
        f"microbatch.rows={max(1, members * batch // 8)}",
    ]
    task = {"task": {"kind": "arithmetic", "max_new_tokens": 16}}
    return load_config(task, [*search, *overrides])


def layer(config: Config) -> Layer:
    """Run the jobs of a generation as a fleet does, and measure each part of the fleet layer."""
    task, engine = make_task(config.task), remote_engine_factory(config, make_engine)(config)
    examples = task.examples("train")[: config.batch_size]
    strategy = make_strategy(
        config.strategy, run_seed=0, generations=1, dimension=engine.weights.dimension
    )
    population = strategy.ask(0)
    fitness = np.linspace(-1.0, 1.0, len(population))
    decoding = make_decoding(config, task)
    jobs: list[EngineJob] = generate_jobs(population, examples, config, decoding)
    update = strategy.tell(population, fitness, fitness, 0.0)
    jobs += [
        DigestJob(),
        ApplyJob(strip_offsets(update) if uses_mirrored_search(config) else update),
        DigestJob(),
    ]
    generating, answers = run_jobs(engine, jobs)
    exchanged = list(zip(jobs, answers, strict=True))
    weigh = partial(weighed, exchanged)
    pieces = {
        "pickling": least(partial(pickled, exchanged)),
        "weighing": least(weigh),
        "look": least(engine.weights.digest),
    }
    members = len(population)
    return Layer(engine.weights.dimension, members, len(jobs), weigh(), generating, pieces)


def generate_jobs(
    population: Population, examples: Sequence[Example], config: Config, how: Decoding
) -> list[EngineJob]:
    """Return the jobs of the microbatches of a generation."""
    sent = [replace(example, answer="", facts={}) for example in examples]
    microbatches = cut_microbatches(population.members, sent, config.microbatch)
    mirrored = uses_mirrored_search(config)
    return [
        GenerateJob(
            [as_member_ref(member) if mirrored else member for member in microbatch.members],
            microbatch.examples,
            how,
        )
        for microbatch in microbatches
    ]


def run_jobs(engine: Engine, jobs: Sequence[EngineJob]) -> tuple[float, list[object]]:
    """Run the jobs, the first one twice to warm up; return seconds of generating, and answers."""
    answers, generating = [], 0.0
    jobs[0](engine)
    for job in jobs:
        began = time.process_time()
        answers.append(job(engine))
        generating += time.process_time() - began if isinstance(job, GenerateJob) else 0.0
    return generating, answers


def pickled(exchanged: Sequence[tuple[EngineJob, object]]) -> None:
    """Pickle and unpickle jobs and answers, as both sides of a pipe do."""
    for job, answer in exchanged:
        pickle.loads(pickle.dumps(job))
        pickle.loads(pickle.dumps(JobDone(answer)))


def weighed(exchanged: Sequence[tuple[EngineJob, object]]) -> CommBytes:
    """Count the bytes of jobs and answers."""
    total = CommBytes()
    for job, answer in exchanged:
        total += byte_accounting.sent_bytes(job) + byte_accounting.received_bytes(job, answer)
    return total


def least(work: Callable[[], object]) -> float:
    """Return the smallest CPU seconds of a few repeats."""
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def asking(variant: str, rounds: int = 200) -> float:
    """Return the CPU seconds of an empty job, on both sides."""
    with ExitStack() as cleanup:
        training = begin_training(load_config({"engine": "toy"}), variant, cleanup)
        training.processors()
        began = training.processors()
        for _ in range(rounds):
            ended = training.processors()
    return (ended - began) / rounds


def row(layer: Layer, asked: Sequence[float]) -> str:
    """Return a row of the table; `asked` is the CPU time of a job, in a process and on Ray."""
    pieces = [seconds / layer.generating for seconds in layer.pieces.values()]
    asking = [layer.jobs * each / layer.generating for each in asked]
    columns = (
        *(f"{layer.numbers:,}", str(layer.members)),
        f"{layer.traffic.non_text / 1e3 / layer.members:.2f}",
        f"{layer.traffic.text / 1e3 / layer.members:.2f}",
        f"{layer.generating:.2f}",
        *(f"{part:.2%}" for part in (*pieces, *asking)),
        *(f"**{sum(pieces) + part:.2%}**" for part in asking),
    )
    return f"{' | '.join(columns)} |"


if __name__ == "__main__":
    main()
