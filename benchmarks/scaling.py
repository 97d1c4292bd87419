"""Scaling laws of the time and memory of a generation in model, population, prompts and tokens.

    python -m benchmarks.scaling                # the tables of docs/scaling.md
    python -m benchmarks.scaling --repeats 1 --sizes 64 128

Models with random weights of four sizes evaluate generations of `low_rank` members of rank 1.
Seconds are CPU seconds (one thread), the smallest of a few repeats; bytes are those of tensors,
counted per operation. The laws are fitted by least squares of relative errors to all points except
the held-out ones:

    generate = a calls + b products + c traffic + d factors                                 (1)
    update   = e tensors + f weights + g directions x weights                               (2)
    memory   = h bytes of weights + i tokens held + j rows + k factors of a microbatch      (3)

- calls: layers x model calls x microbatches (the fixed cost of a step)
- products: weights of linear layers x tokens computed, plus weights of the head x tokens written
- traffic: tokens computed x layers x (hidden + inner) (norms, activations, corrections)
- factors: numbers of all low-rank factors, sides of the layers x members
- tokens held: rows of a microbatch x their length x keys and values of a token
- rows: rows of a microbatch x tokens of a prompt x widest activation

`benchmarks/scaling_out.py` applies (1) to (3) to GPUs: counts carry over, seconds do not.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from transformers import AutoTokenizer

from benchmarks.memory import LiveTensors
from benchmarks.population import NoGraders
from benchmarks.shapes import Shape, prompts, random_model
from germline.config import InProcess, LowRank, MicrobatchSettings, load_config
from germline.engines.inprocess import InProcessEngine
from germline.engines.prompt_batch import encode_prompt, pad_prompts
from germline.nano import NANO_DIR
from germline.optimizers import Sgd
from germline.rollout import evaluate_members, members_per_microbatch
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.types import Decoding, SeedPerturbation, Update

SIZES = (64, 128, 192, 320)
"""Hidden sizes; the number of layers, the inner size and the weights grow with them."""


@dataclass(frozen=True)
class Point:
    """One generation to measure.

    Attributes:
        hidden: hidden size, which identifies the model.
        held_out: whether the point is left out of the fit.
    """

    hidden: int
    members: int = 16
    prompts: int = 4
    tokens: int = 8
    held_out: bool = False


@dataclass(frozen=True)
class Measured:
    """CPU seconds and bytes of a generation."""

    generate: float
    update: float
    memory: float


def main() -> None:
    """Measure, fit and print."""
    parser = argparse.ArgumentParser(description="Fit the scaling of a generation.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    points = grid(arguments.sizes)
    found = measure(points, arguments.repeats)
    print(f"1 thread, torch {torch.__version__}, least of {arguments.repeats}, processor seconds\n")
    print(
        "| weights | members | prompts | tokens | generate, s | law | update, s | law | peak, MB "
        "| law | |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    fits = {what: fitted(points, found, what) for what in LAWS}
    for point, one in zip(points, found, strict=True):
        print(line(point, one, fits))
    print()
    for what, law in LAWS.items():
        terms = " + ".join(
            f"{fit:.3g} {name}" for fit, name in zip(fits[what], law, strict=True) if fit
        )
        seen, unseen = (errors(points, found, what, fits[what], held_out=h) for h in (False, True))
        print(
            f"- {what} = {terms}. Relative error: median {statistics.median(seen):.0%}, at most "
            f"{max(seen):.0%} of what was fitted; median {statistics.median(unseen):.0%}, at most "
            f"{max(unseen):.0%} of what was held out."
        )


def grid(sizes: Sequence[int]) -> list[Point]:
    """Vary one factor at a time on every size; hold out points where several differ."""
    points = []
    for hidden in sizes:
        base = Point(hidden)
        points += [
            base,
            *(replace(base, members=n) for n in (4, 64)),
            *(replace(base, prompts=n) for n in (1, 16)),
            *(replace(base, tokens=n) for n in (2, 32)),
        ]
        points += [
            Point(hidden, members=32, prompts=8, tokens=16, held_out=True),
            Point(hidden, members=8, prompts=12, tokens=24, held_out=True),
        ]
    return points


def shape(hidden: int) -> Shape:
    """Return the model of a hidden size: from 0.2 to 10 million weights."""
    layers = max(2, hidden // 40)
    return Shape(str(hidden), hidden, 3 * hidden, layers, hidden // 32, hidden // 64, 1023)


def measure(points: Sequence[Point], repeats: int) -> list[Measured]:
    """Measure all points, size after size."""
    engines: dict[int, InProcessEngine] = {}
    found = []
    for point in points:
        if point.hidden not in engines:
            engines = {point.hidden: engine_of(point.hidden)}
        found.append(measured(engines[point.hidden], point, repeats))
    return found


def engine_of(hidden: int) -> InProcessEngine:
    """Load a random model of a size."""
    section = InProcess(device="cpu", dtype="float32", threads=1)
    space = make_space(LowRank(rank=1))
    return InProcessEngine(random_model(shape(hidden), torch.device("cpu")), space, Sgd(), section)


def measured(engine: InProcessEngine, point: Point, repeats: int) -> Measured:
    """Measure the memory of one generation, the time of others, and the update."""
    members, update = population(point.members)
    examples = prompts(point.prompts)

    def generate() -> None:
        evaluate_members(
            engine, NoGraders(), members, examples, MicrobatchSettings(), Decoding(point.tokens)
        )

    with LiveTensors() as live:
        generate()
    times: dict[str, list[float]] = {"generate": [], "update": []}
    for _ in range(repeats):
        for name, work in (
            ("generate", generate),
            ("update", lambda: engine.weights.apply(update)),
        ):
            began = time.process_time()
            work()
            times[name].append(time.process_time() - began)
    return Measured(min(times["generate"]), min(times["update"]), live.peak)


def population(members: int) -> tuple[Sequence[SeedPerturbation], Update]:
    """Return members in antithetic pairs and the update that follows them."""
    config = load_config({"strategy": {"population": members, "sigma": 1e-3}})
    asked = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
    coefficients = tuple((-1) ** k / members for k in range(members // 2))
    return [one for one in asked if isinstance(one, SeedPerturbation)], Update(
        0, 0, 1e-3, 1e-9, coefficients
    )


def counts(point: Point) -> dict[str, float]:
    """Count the terms of the laws."""
    of = shape(point.hidden)
    ids = [encode_prompt(TOKENIZER, example) for example in prompts(point.prompts)]
    prefix, longest = len(pad_prompts(ids, 0).prefix), max(len(one) for one in ids)
    prefix = prefix if point.prompts > 1 else 0
    rows = point.members * point.prompts
    together = members_per_microbatch(MicrobatchSettings(), point.prompts)
    microbatches = -(-point.members // together)
    in_microbatch = min(together, point.members)
    computed = point.members * prefix + rows * (longest - prefix + point.tokens - 1)
    held = in_microbatch * point.prompts * (longest + point.tokens)
    return {
        "calls": microbatches * of.layers * (point.tokens + (prefix > 0)),
        "products": computed * of.linear + rows * point.tokens * of.head,
        "traffic": computed * of.layers * (of.hidden + of.inner),
        "factors": of.sides * point.members,
        "tensors": 7 * of.layers,
        "weights": of.linear,
        "directions x weights": point.members / 2 * of.linear,
        "bytes of weights": 4 * of.numbers,
        "tokens held": held * 2 * of.kv_width * of.layers,
        "rows": in_microbatch * point.prompts * max(longest - prefix, 1) * of.inner,
        "factors of a microbatch": of.sides * in_microbatch,
    }


LAWS: dict[str, tuple[str, ...]] = {
    "generate": ("calls", "products", "traffic", "factors"),
    "update": ("tensors", "weights", "directions x weights"),
    "memory": ("bytes of weights", "tokens held", "rows", "factors of a microbatch"),
}
TOKENIZER = AutoTokenizer.from_pretrained(NANO_DIR)


def fitted(
    points: Sequence[Point], found: Sequence[Measured], what: str
) -> Float[np.ndarray, " terms"]:
    """Fit one law to the points that are not held out: least squares of relative errors.

    A term with a negative coefficient is left out.
    """
    seen = [i for i, point in enumerate(points) if not point.held_out]
    target = np.array([getattr(found[i], what) for i in seen])
    terms = np.array([[counts(points[i])[name] for name in LAWS[what]] for i in seen])
    relative = terms / target[:, None]
    size = np.linalg.norm(relative, axis=0)
    kept = list(range(terms.shape[1]))
    while True:
        scaled = relative[:, kept] / size[kept]
        solution = np.linalg.lstsq(scaled, np.ones(len(seen)), rcond=None)[0] / size[kept]
        if solution.min() >= 0:
            break
        del kept[int(np.argmin(solution * size[kept]))]
    fit = np.zeros(terms.shape[1])
    fit[kept] = solution
    return fit


def predicted(point: Point, what: str, fit: Float[np.ndarray, " terms"]) -> float:
    """Return the prediction of a law for a point."""
    counted = counts(point)
    return float(sum(one * counted[name] for one, name in zip(fit, LAWS[what], strict=True)))


def errors(
    points: Sequence[Point],
    found: Sequence[Measured],
    what: str,
    fit: Float[np.ndarray, " terms"],
    *,
    held_out: bool,
) -> list[float]:
    """Return the relative errors of a law, on the points it was fitted to or on the others."""
    return [
        abs(predicted(point, what, fit) / getattr(one, what) - 1)
        for point, one in zip(points, found, strict=True)
        if point.held_out == held_out
    ]


def line(point: Point, one: Measured, fits: dict[str, Float[np.ndarray, " terms"]]) -> str:
    """Return a row of the table."""
    laws = {what: predicted(point, what, fit) for what, fit in fits.items()}
    cells = (
        f"{shape(point.hidden).numbers / 1e6:.2f} M",
        *(str(n) for n in (point.members, point.prompts, point.tokens)),
        *(f"{one.generate:.3f}", f"{laws['generate']:.3f}"),
        *(f"{one.update:.4f}", f"{laws['update']:.4f}"),
        *(f"{one.memory / 1e6:.1f}", f"{laws['memory'] / 1e6:.1f}"),
        "held out" if point.held_out else "",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
