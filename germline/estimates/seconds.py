"""Time of a generation: one equation for each part.

    generate = microbatches / engines x (prefill + (new tokens - 1) x step)                 (1)
    pass     = products + head + attention + elementwise + operations                       (2)
    products = roofline of the linear layers with the tokens of the pass                    (3)
    head     = roofline of the LM head with one token of every row                          (4)
    attention = keys and values of the texts, read once and written and read once more for
               every query head / bandwidth; in prefill also 4 x tokens x length x heads x
               head dim / FLOP/s, and in half precision on a CPU a call for every head      (5)
    elementwise = tokens x layers x (8 hidden + 6 inner) / rate of elementwise operations   (6)
    operations = layers x operations of a layer x seconds of an operation                   (7)
    members  = noise of the factors / rate; `full`: numbers of every member / rate of
               writing them, and the serving copy reset                                     (8)
    update   = directions x searched x 8 bytes / bandwidth + noise / rate, the step of the
               masters, and their rounding into the serving copy                             (9)
    digest   = searched x 4 / rate of SHA-256                                              (10)
    score    = members / those at once / engines x (pass over prompts + pass over completions +
               head of their other tokens), where members score                            (11)
    run      = start + generations x their parts + held-out scores x generate + calibration (12)

All completions are assumed to have their full length; if they end earlier, a generation is shorter.
In (12), generate is (1) of the center. The calibration of sigma generates likewise, and in each of
`TRIALS` trials its members and the center score the completions: (11). The start, such as loading,
is counted where it was measured, and snapshots are not. `benchmarks/estimates.py` compares the
estimates with runs on a CPU.
"""

import math
from dataclasses import dataclass, replace

from germline.config import AutoSigma, Config
from germline.estimates.hardware import Hardware, name_of
from germline.estimates.memory import FP32, batch_rows, texts_at_once
from germline.estimates.model_shape import ModelShape
from germline.estimates.workload import Workload
from germline.evaluation.member_kl import TOKENS, count_examples

OPERATIONS_PER_LAYER = 75
"""Tensor operations of a decoder layer with corrections, counted in a decode step."""

OPERATIONS_PER_HEAD = 2.5
"""Operations as long as half-precision attention of a CPU takes per row and head: at 22 M."""

OPERATIONS_PER_TENSOR, OPERATIONS_PER_MEMBER_TENSOR, OPERATIONS_PER_RECORD = 100, 15, 2000
"""Operations as long as an update of one tensor, as one tensor of a `full` member, and as the work
that a generation does once, such as its record and its signals: measured."""

PYTHON_PER_OPERATION = 3.5
"""Ratio of the time of Python and dispatch to that of the operation on a CPU, measured on the nano
model; on a GPU the seconds of a launch contain it."""


TRIALS = 3
"""Trials of a calibration of sigma: the median of ten runs, which had 2 to 4."""


@dataclass(frozen=True)
class Seconds:
    """The parts of a generation."""

    members: float
    prefill: float
    decode: float
    update: float
    digest: float
    score: float = 0.0

    @property
    def total(self) -> float:
        """Return the whole generation."""
        generated = self.prefill + self.decode
        return self.members + generated + self.score + self.update + self.digest


def seconds_of(shape: ModelShape, work: Workload, machine: Hardware) -> Seconds:
    """Return the seconds of one generation by part: equations (1) to (11)."""
    prefill, decode = generate_s(shape, work, machine)
    return Seconds(
        members=member_s(work, machine),
        prefill=prefill,
        decode=decode,
        update=update_s(work, machine),
        digest=work.searched * FP32 / machine.hashed_per_s,
        score=score_s(shape, work, machine) if work.scored else 0.0,
    )


def run_s(config: Config, shape: ModelShape, work: Workload, machine: Hardware) -> float:
    """Return equation (12)."""
    scores = 1 + math.ceil(config.generations / config.held_out.every)
    seconds = machine.start_s + config.generations * seconds_of(shape, work, machine).total
    seconds += scores * center_s(config, shape, work, machine, work.texts.held_out)
    sigma = getattr(config.search, "sigma", None)
    if isinstance(sigma, AutoSigma):
        members = 2 * sigma.tried_pairs
        texts = replace(work.texts, new_tokens=min(TOKENS, work.texts.new_tokens))
        count = count_examples(texts.new_tokens, members)
        tried = replace(work, texts=texts, members=1 + members, scored=count, scored_examples=count)
        seconds += TRIALS * score_s(shape, tried, machine)
        seconds += center_s(config, shape, tried, machine, count)
    return seconds


def center_s(
    config: Config, shape: ModelShape, work: Workload, machine: Hardware, examples: int
) -> float:
    """Return equation (1) of the center, which has a microbatch for its rows alone."""
    if not examples:
        return 0.0
    rows = min(examples, config.microbatch.rows)
    count = -(-examples // rows)
    center = replace(work, rows=rows, generating=1, members_at_once=1, microbatches=count)
    return sum(generate_s(shape, center, machine))


def generate_s(shape: ModelShape, work: Workload, machine: Hardware) -> tuple[float, float]:
    """Return equation (1): prefill and decode."""
    turns = -(-work.microbatches // work.engines)
    rows, texts = batch_rows(work), work.texts
    prefill = pass_s(shape, work, machine, rows * (texts.prompt - texts.prefix), texts.prompt)
    if texts.prefix:
        shared = work.generating * texts.prefix
        prefill += pass_s(shape, work, machine, shared, texts.prefix) - head_s(shape, work, machine)
    average = texts.prompt + texts.new_tokens / 2
    step = pass_s(shape, work, machine, rows, average)
    return turns * prefill, turns * (texts.new_tokens - 1) * step


def score_s(shape: ModelShape, work: Workload, machine: Hardware) -> float:
    """Return equation (11); a member reads what prompts share once, and each prompt once."""
    texts, new = work.texts, work.texts.new_tokens
    members, width = texts_at_once(work, work.scored, new)
    members = min(members, work.members_at_once)
    piece = replace(work, rows=members * width, generating=members)
    prompts = texts.prefix + work.scored_examples * (texts.prompt - texts.prefix)
    seconds = pass_s(shape, piece, machine, piece.rows * new, work.length)
    seconds += machine.product_s(work.dtype, piece.rows * (new - 1), shape.head_numbers)
    seconds *= -(-work.scored // width)
    seconds += pass_s(shape, piece, machine, members * prompts, texts.prompt)
    return -(-work.members // members) * seconds / work.engines


def pass_s(
    shape: ModelShape, work: Workload, machine: Hardware, tokens: int, length: int | float
) -> float:
    """Return equation (2) for a number of tokens, in texts of a length."""
    products = machine.product_s(work.dtype, tokens, shape.linear_numbers)
    return (
        products
        + head_s(shape, work, machine)
        + attention_s(shape, work, machine, tokens, length)
        + elementwise_s(shape, work, machine, tokens)
        + operations_s(shape, work, machine)
    )


def head_s(shape: ModelShape, work: Workload, machine: Hardware) -> float:
    """Return equation (4)."""
    return machine.product_s(work.dtype, batch_rows(work), shape.head_numbers)


def attention_s(
    shape: ModelShape, work: Workload, machine: Hardware, tokens: int, length: int | float
) -> float:
    """Return equation (5)."""
    rows, s = batch_rows(work), work.dtype.itemsize
    read = rows * length * shape.kv_numbers * s
    repeated = 2 * read * shape.heads / shape.kv_heads
    width = shape.heads * shape.head_dim
    arithmetic = 4 * tokens * length * width * shape.layers
    seconds = (read + repeated) / machine.bandwidth
    if not machine.on_gpu and work.dtype.itemsize < FP32:
        seconds += rows * shape.heads * shape.layers * OPERATIONS_PER_HEAD * machine.operation_s
    return seconds + arithmetic / machine.flops(work.dtype, tokens)


def elementwise_s(shape: ModelShape, work: Workload, machine: Hardware, tokens: int) -> float:
    """Return equation (6)."""
    numbers = tokens * shape.layers * (8 * shape.hidden + 6 * shape.inner)
    return numbers / machine.elementwise_per_s[name_of(work.dtype)]


def operations_s(shape: ModelShape, work: Workload, machine: Hardware) -> float:
    """Return equation (7); an inference engine records its steps as CUDA graphs."""
    if work.is_served and machine.on_gpu:
        return 0.0
    return shape.layers * OPERATIONS_PER_LAYER * _operation_s(machine)


def _operation_s(machine: Hardware) -> float:
    return machine.operation_s * (1 if machine.on_gpu else PYTHON_PER_OPERATION)


def member_s(work: Workload, machine: Hardware) -> float:
    """Return equation (8)."""
    if not work.stacked:
        return work.directions * work.member_numbers / machine.noise_per_s / work.engines
    drawn = work.directions if work.stacked > 1 else work.members
    noise = drawn * work.searched / machine.perturbed_per_s
    moved = work.members * work.searched * (FP32 + work.dtype.itemsize) / machine.bandwidth
    written = work.members * work.tensors * OPERATIONS_PER_MEMBER_TENSOR * _operation_s(machine)
    return (noise + moved + written) / work.engines


def update_s(work: Workload, machine: Hardware) -> float:
    """Return equation (9)."""
    is_dense = work.stacked > 0
    rate = machine.perturbed_per_s if is_dense and machine.on_gpu else machine.noise_per_s
    noise = work.directions * (work.member_numbers or work.searched) / rate
    summed = work.directions * work.searched * 2 * FP32 / machine.bandwidth
    moved = work.searched * (4 * FP32 + work.dtype.itemsize) / machine.bandwidth
    operations = work.tensors * OPERATIONS_PER_TENSOR + OPERATIONS_PER_RECORD
    return noise + summed + moved + operations * _operation_s(machine)
