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
from germline.config import Config, load_config
from germline.fleet import weighing
from germline.fleet.elsewhere import Done
from germline.fleet.follower import as_told, by_name
from germline.fleet.jobs import Apply, Digest, Job, Play
from germline.protocols import Engine
from germline.rollout import cut
from germline.run.assembly import decoding, make_engine, make_task
from germline.run.fleets import elsewhere, followed
from germline.strategies import make_strategy
from germline.traffic import Traffic
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
    traffic: Traffic
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
        f"batch={batch}",
        f"strategy.population={members}",
        "engine.threads=1",
        f"cell.rows={max(1, members * batch // 8)}",
    ]
    task = {"task": {"kind": "arithmetic", "max_new_tokens": 16}}
    return load_config(task, [*search, *overrides])


def layer(config: Config) -> Layer:
    """Play a generation job by job, as a fleet would, and take the pieces one by one."""
    task, engine = make_task(config.task), elsewhere(config, make_engine)(config)
    examples = task.examples("train")[: config.batch]
    strategy = make_strategy(
        config.strategy, run_seed=0, generations=1, dimension=engine.weights.dimension
    )
    population = strategy.ask(0)
    fitness = np.linspace(-1.0, 1.0, len(population))
    jobs: list[Job] = plays(population, examples, config, decoding(config, task))
    update = strategy.tell(population, fitness, fitness, 0.0)
    jobs += [Digest(), Apply(as_told(update) if followed(config) else update), Digest()]
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
) -> list[Job]:
    """Return the cells of a generation as they are handed out."""
    asked = [replace(one, answer="", facts={}) for one in examples]
    cells = cut(population.members, asked, config.cell)
    name = followed(config)
    return [
        Play([by_name(one) if name else one for one in cell.members], cell.examples, how)
        for cell in cells
    ]


def played(engine: Engine, jobs: Sequence[Job]) -> tuple[float, list[object]]:
    """Do the jobs, once to warm up where that is cheap; return the seconds of playing, answers."""
    answers, playing = [], 0.0
    jobs[0](engine)
    for job in jobs:
        began = time.process_time()
        answers.append(job(engine))
        playing += time.process_time() - began if isinstance(job, Play) else 0.0
    return playing, answers


def pickled(exchanged: Sequence[tuple[Job, object]]) -> None:
    """Pickle and unpickle what travels, as both sides of a pipe do."""
    for job, answer in exchanged:
        pickle.loads(pickle.dumps(job))
        pickle.loads(pickle.dumps(Done(answer)))


def weighed(exchanged: Sequence[tuple[Job, object]]) -> Traffic:
    """Count what travels."""
    total = Traffic()
    for job, answer in exchanged:
        total += weighing.sent(job) + weighing.received(job, answer)
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
        f"{one.traffic.besides_text / 1e3 / one.members:.2f}",
        f"{one.traffic.text / 1e3 / one.members:.2f}",
        f"{one.playing:.2f}",
        *(f"{part:.2%}" for part in (*pieces, *asking)),
        *(f"**{sum(pieces) + part:.2%}**" for part in asking),
    )
    return f"{' | '.join(cells)} |"


if __name__ == "__main__":
    main()
