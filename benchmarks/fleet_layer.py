"""What the fleet layer adds to a generation, piece by piece: bytes that travel, seconds it takes.

    python -m benchmarks.fleet_layer               # the tables of docs/benchmarks.md
    python -m benchmarks.fleet_layer --models 22M --populations 32

Seconds are those of processors, each piece by itself, the least of a few repeats: so they hold on a
machine that does other things too, and small shares can be told from noise. They are compared with
those in which one engine plays the generation on one thread. Counted are

- names: of members, coefficients of the update (to one engine), digests, envelopes;
- text: prompts and completions, as text and as tokens;
- pickling: jobs and answers, on both sides;
- weighing: counting these bytes;
- look: the digest after playing, which an engine in this process does not take;
- asking: the way to a process, or to an actor on Ray, and back, for every job.
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

from benchmarks.courses import course
from benchmarks.shapes import BENCH, save_random
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
    """What a fleet of one engine elsewhere adds to a generation.

    Attributes:
        numbers: that are searched.
        jobs: of the generation.
        playing: seconds in which the engine plays it; NaN where it was not played.
        pieces: seconds of what is added, by name.
    """

    numbers: int
    members: int
    jobs: int
    traffic: CommBytes
    playing: float
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
        f"arithmetic, {arguments.batch} prompts, 16 new tokens, cells of an eighth of the rows, "
        f"1 thread, torch {torch.__version__}, least of {REPEATS}\n"
    )
    print(
        "| model | search | numbers | members | names, kB/member | text, kB/member | playing, s "
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
    """Play a generation job by job, as a fleet would, and take the pieces one by one."""
    task, engine = make_task(config.task), remote_engine_factory(config, make_engine)(config)
    examples = task.examples("train")[: config.batch_size]
    strategy = make_strategy(
        config.strategy, run_seed=0, generations=1, dimension=engine.weights.dimension
    )
    population = strategy.ask(0)
    fitness = np.linspace(-1.0, 1.0, len(population))
    jobs: list[EngineJob] = plays(population, examples, config, make_decoding(config, task))
    update = strategy.tell(population, fitness, fitness, 0.0)
    jobs += [
        DigestJob(),
        ApplyJob(strip_offsets(update) if uses_mirrored_search(config) else update),
        DigestJob(),
    ]
    playing, answers = played(engine, jobs)
    exchanged = list(zip(jobs, answers, strict=True))
    weigh = partial(weighed, exchanged)
    pieces = {
        "pickling": least(partial(pickled, exchanged)),
        "weighing": least(weigh),
        "look": least(engine.weights.digest),
    }
    members = len(population)
    return Layer(engine.weights.dimension, members, len(jobs), weigh(), playing, pieces)


def plays(
    population: Population, examples: Sequence[Example], config: Config, how: Decoding
) -> list[EngineJob]:
    """Return the cells of a generation as they are handed out."""
    asked = [replace(one, answer="", facts={}) for one in examples]
    cells = cut_microbatches(population.members, asked, config.microbatch)
    name = uses_mirrored_search(config)
    return [
        GenerateJob(
            [as_member_ref(one) if name else one for one in cell.members], cell.examples, how
        )
        for cell in cells
    ]


def played(engine: Engine, jobs: Sequence[EngineJob]) -> tuple[float, list[object]]:
    """Do the jobs, once to warm up where that is cheap; return the seconds of playing, answers."""
    answers, playing = [], 0.0
    jobs[0](engine)
    for job in jobs:
        began = time.process_time()
        answers.append(job(engine))
        playing += time.process_time() - began if isinstance(job, GenerateJob) else 0.0
    return playing, answers


def pickled(exchanged: Sequence[tuple[EngineJob, object]]) -> None:
    """Pickle and unpickle what travels, as both sides of a pipe do."""
    for job, answer in exchanged:
        pickle.loads(pickle.dumps(job))
        pickle.loads(pickle.dumps(JobDone(answer)))


def weighed(exchanged: Sequence[tuple[EngineJob, object]]) -> CommBytes:
    """Count what travels."""
    total = CommBytes()
    for job, answer in exchanged:
        total += byte_accounting.sent_bytes(job) + byte_accounting.received_bytes(job, answer)
    return total


def least(work: Callable[[], object]) -> float:
    """Return the least processor seconds of a few repeats."""
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def asking(variant: str, rounds: int = 200) -> float:
    """Return the processor seconds of a job that does nothing, on both sides."""
    with ExitStack() as cleanup:
        one = course(load_config({"engine": "toy"}), variant, cleanup)
        one.processors()
        began = one.processors()
        for _ in range(rounds):
            ended = one.processors()
    return (ended - began) / rounds


def row(one: Layer, asked: Sequence[float]) -> str:
    """Return a row of the table; `asked` is what a job takes, here and there."""
    pieces = [seconds / one.playing for seconds in one.pieces.values()]
    asking = [one.jobs * each / one.playing for each in asked]
    cells = (
        *(f"{one.numbers:,}", str(one.members)),
        f"{one.traffic.non_text / 1e3 / one.members:.2f}",
        f"{one.traffic.text / 1e3 / one.members:.2f}",
        f"{one.playing:.2f}",
        *(f"{part:.2%}" for part in (*pieces, *asking)),
        *(f"**{sum(pieces) + part:.2%}**" for part in asking),
    )
    return f"{' | '.join(cells)} |"


if __name__ == "__main__":
    main()
