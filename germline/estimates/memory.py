"""Memory of a run: one equation for each part, before a run begins and without loading weights.

With s the bytes of a number in the serving dtype (2 in bf16 and fp16, 4 in fp32):

    weights       numbers x s                                                                (1)
    masters       searched x 4; none where an fp32 serving copy is the master                (2)
    stored        frozen x s of the files, where the serving dtype does not hold them        (3)
    moments       searched x 0, 4 (momentum) or 8 (adam)                                     (4)
    members       members x numbers of a member x s; `full`: copies of what is searched      (5)
    KV cache      rows x length x layers x 2 x kv heads x head dim x s                       (6)
    activations   tokens at once x (3 inner + 4 hidden) x s, and the attention's             (7)
    logits        rows x vocabulary x (s; sampled: + 28)                                     (8)
    update        the gradient of the largest searched tensor x 4                            (9)
    calibration   texts read at once x (KV cache, and the larger of activations and logits) (10)
    scoring       the same, of the completions that members score                           (10)
    backward      searched x 4, tokens of a pass x layers x (4 inner + 9 hidden
                  + heads x length) x s, and new tokens of a pass x vocabulary x 12         (11)

The start model of a KL penalty (`task.kl_coef`) has (1) and (3) again, with nothing searched.

(1) to (4) are allocated during the whole run, (5) to (8) while completions are generated, (9)
during the update, and (10), with (5), while members score completions and while strategy.sigma=auto
is calibrated before the first generation. So a run needs (1) to (4) plus the largest of (5) to (8),
(9), and (5) with (10). Where the center alone generates, there is no (5) during generation. The
numbers 3 and 4 in (7) count the tensors that a gated MLP holds at once: residual, its norm, the two
projections, their product, and the output. While prompts are read, attention (transformers' sdpa
with a mask) repeats keys and values for every query head; `grouped_attention` does not, and holds
small scores instead.

Limits: the estimates have not been compared with the memory of a GPU, and files that are mapped
while a model is loaded are not counted, because the system may free them. Texts that end leave gaps
in the heap of a CPU: nano took 0.85 GB after 43 generations, by estimate 0.72. Up to 0.12 GB that
products in half precision keep on a CPU are not counted, nor is the program of an inference engine
that is served on a CPU. Older versions of transformers repeat keys and values in decode steps as
well, which is not counted. (11), for methods
that backpropagate during the update, takes all layers to be searched; with adapters, which are in
fp32, its s is 4. Of TRL, 0.1 GB of program are not counted, and of scorers in the training process
nothing is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from germline.config import AutoSigma, Config, InProcess
from germline.engines.completion_scorer import LOGITS_AT_ONCE, TOKENS_AT_ONCE
from germline.engines.decode import PREFILL_TOKENS, SMALLEST_BATCH, prefill_tokens_on_gpu
from germline.engines.model_tensors import holds_exactly
from germline.estimates.machine import Machine
from germline.estimates.sizes import ModelShape, TextLengths, Workload, workload
from germline.evaluation.kl_divergence import TOKENS, count_examples

FP32 = 4

PROGRAM_BYTES = 510e6
"""Resident memory of Python, torch and transformers before a weight is loaded (CPU, Linux)."""

GPU_PROGRAM_BYTES = 2e9
"""The same with the libraries of CUDA: assumed, not measured here."""

CONTEXT_BYTES = 500e6
"""Device memory of a CUDA context and cuBLAS's workspace: assumed, not measured here."""

SAMPLING_BYTES = 28
"""Bytes per logit while a token is sampled: fp32 probabilities, sorted ones, sums, indices."""

SERVED_ROWS = 256
"""Texts that vLLM generates at once by default (max_num_seqs); others wait."""

LESS_MEMORY = (
    "engine.dtype=bfloat16, a smaller microbatch.rows (with gradients, method.rows), "
    "engine.master_device=host (with a GPU), space=lora, or a smaller model"
)
"""What needs less memory, in the order in which it changes a run."""

Place = Literal["device", "host"]
Phase = Literal["always", "generation", "scoring", "update", "calibration"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Part:
    """One line of an estimate: what is allocated in which memory, and when."""

    name: str
    bytes: int | float
    place: Place
    phase: Phase = "always"


@dataclass(frozen=True)
class Estimate:
    """The memory that a run needs, and that of the machine."""

    work: Workload
    parts: tuple[Part, ...]
    machine: Machine

    @property
    def places(self) -> tuple[Place, ...]:
        """The memories that the machine has."""
        return ("device", "host") if self.machine.on_gpu else ("host",)

    def needed(self, place: Place) -> float:
        """Return the peak bytes in one place; on a CPU all of them are on the host."""
        return total(self.parts, place, on_gpu=self.machine.on_gpu)

    def available(self, place: Place) -> float:
        """Return the bytes that are available in one place."""
        return self.machine.device_bytes if place == "device" else self.machine.host_bytes

    @property
    def lacking(self) -> Place | None:
        """The first place without enough memory; None if the run fits."""
        return next((one for one in self.places if self.needed(one) > self.available(one)), None)


def estimate(config: Config, shape: ModelShape, texts: TextLengths, machine: Machine) -> Estimate:
    """Compute the memory that a config needs on a machine."""
    work = workload(config, shape, texts, on_gpu=machine.on_gpu)
    return Estimate(work, tuple(memory_parts(config, shape, work)), machine)


def total(parts: Sequence[Part], place: Place, *, on_gpu: bool) -> float:
    """Return the peak bytes of one place; on a CPU every part is on the host."""
    if not on_gpu:
        parts = [replace(part, place="host") for part in parts]
    always, *phases = (
        sum(part.bytes for part in parts if part.place == place and part.phase == phase)
        for phase in PHASES
    )
    return float(always + max(phases))


def memory_parts(config: Config, shape: ModelShape, work: Workload) -> list[Part]:
    """Return every part of the memory of one engine, with its place and phase.

    Served engines (vLLM, SGLang) divide their share of the device between weights and KV cache;
    their masters are on the host.
    """
    engine, on_gpu = config.engine, work.on_gpu
    on_device = isinstance(engine, InProcess) and engine.master_device == "device"
    masters: Place = "device" if on_device else "host"
    held: Phase = "always" if work.is_served else "scoring" if work.scored else "generation"
    shared = (
        work.searches_weights
        and not (work.stacked or work.is_served)
        and work.dtype == torch.float32
        and (on_device or not on_gpu)
    )
    weights, members = shape.numbers * work.dtype.itemsize, _member_bytes(work)
    frozen = shape.numbers - (work.searched if work.searches_weights else 0)
    parts = [
        Part("weights", weights, "device"),
        Part("fp32 masters", 0 if shared else work.searched * FP32, masters),
        Part("optimizer", work.searched * work.optimizer_bytes, masters),
        Part("stored weights", _stored_bytes(shape, work, frozen), "host"),
        Part("members", members, "device", held),
        Part("KV cache", _kv_bytes(shape, work), "device", "generation"),
        Part("logits", _logit_bytes(shape, work), "device", "generation"),
        Part("update", work.largest * FP32, masters, "update"),
        Part("program", GPU_PROGRAM_BYTES if on_gpu else PROGRAM_BYTES, "host"),
    ]
    if on_gpu:
        parts.append(Part("CUDA context", CONTEXT_BYTES, "device"))
    if work.is_served:
        return parts
    most_tokens = max(
        _activation_bytes(shape, work, *prefill_tokens(shape, work)),
        _activation_bytes(shape, work, _batch_rows(work), 1),
    )
    parts.append(Part("activations", most_tokens, "device", "generation"))
    if work.scored:
        needed = _reading_bytes(shape, work, work.scored, work.texts.new_tokens)
        parts.append(Part("scoring", needed, "device", "scoring"))
    if isinstance(sigma := getattr(config.search, "sigma", None), AutoSigma):
        # All texts are taken to have the most tokens. Members take their part again.
        new = min(TOKENS, work.texts.new_tokens)
        examples = count_examples(new, 2 * sigma.tried_pairs)
        needed = members + _reading_bytes(shape, work, examples, new)
        parts.append(Part("calibration of sigma", needed, "device", "calibration"))
    if config.method.backpropagates:
        parts.append(
            Part("backward pass", _backward_bytes(config, shape, work), "device", "update")
        )
    if config.task.kl_coef is not None:
        parts.append(Part("start model", weights, "device"))
        stored = _stored_bytes(shape, work, shape.numbers)
        parts.append(Part("start model, stored", stored, "host"))
    return parts


def _stored_bytes(shape: ModelShape, work: Workload, frozen: int) -> int:
    """Return equation (3); an inference engine has its copy in another process."""
    is_held = not work.is_served and holds_exactly(work.dtype, shape.stored_dtype)
    return 0 if is_held else frozen * shape.stored_dtype.itemsize


def _member_bytes(work: Workload) -> int:
    """Return equation (5): factors in fp32 while they are drawn, and in the serving dtype."""
    if work.stacked > 1:
        return work.stacked * work.searched * work.dtype.itemsize + work.largest * FP32
    each = work.dtype.itemsize + (0 if work.is_served else FP32)
    return work.members_at_once * work.member_numbers * each


def _kv_bytes(shape: ModelShape, work: Workload) -> int:
    """Return equation (6)."""
    return _batch_rows(work) * work.length * shape.kv_numbers * work.dtype.itemsize


def _activation_bytes(shape: ModelShape, work: Workload, tokens: int, new: int) -> int:
    """Return equation (7) of tokens that a layer computes at once, `new` of them in each row."""
    of_mlp = tokens * (3 * shape.inner + 4 * shape.hidden)
    rows = _batch_rows(work)
    repeated = 2 * rows * shape.heads * shape.head_dim * work.texts.prompt if new > 1 else 0
    mask = 2 * rows * new * work.length
    return (of_mlp + repeated + mask) * work.dtype.itemsize


def _logit_bytes(shape: ModelShape, work: Workload) -> int:
    """Return equation (8)."""
    each = work.dtype.itemsize + (SAMPLING_BYTES if work.sampled else 0)
    return _batch_rows(work) * shape.vocabulary * each


def _reading_bytes(shape: ModelShape, work: Workload, rows: int, new: int) -> int:
    """Return equation (10): members read `rows` texts each, with `new` tokens, piece by piece.

    All prompts are taken to be as long as the longest one. The cache of a piece is a copy, and the
    log-probabilities of a few rows are computed at a time.
    """
    length = work.texts.prompt + new
    members = min(max(1, TOKENS_AT_ONCE // (rows * length)), work.members)
    members = min(members, work.stacked or members)
    texts = members * min(rows, max(1, TOKENS_AT_ONCE // length))
    most = max(1, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // shape.vocabulary))
    at_once = min(texts, max(members, most // new))
    tokens = min(at_once * new, max(at_once, most))
    read = (texts * work.texts.prompt + at_once * length) * shape.kv_numbers
    of_mlp = tokens * (3 * shape.inner + 4 * shape.hidden)
    return (read + max(tokens * shape.vocabulary, of_mlp)) * work.dtype.itemsize


def _backward_bytes(config: Config, shape: ModelShape, work: Workload) -> int:
    """Return equation (11)."""
    texts, most = work.texts, config.method.generated_rows(work.members) * work.texts.examples
    rows = min(getattr(config.method, "rows", most), most)
    of_token = 4 * shape.inner + 9 * shape.hidden + shape.heads * work.length
    each = work.dtype.itemsize if work.searches_weights else FP32
    kept = rows * work.length * shape.layers * of_token * each
    return work.searched * FP32 + kept + rows * texts.new_tokens * shape.vocabulary * 3 * FP32


def _batch_rows(work: Workload) -> int:
    """Return the rows of a microbatch with padding; microbatches of an engine run in turn."""
    if work.is_served:
        return min(work.rows, SERVED_ROWS)
    slots = -(-work.rows // work.generating)
    return work.generating * max(slots, -(-SMALLEST_BATCH // work.generating))


def prefill_tokens(shape: ModelShape, work: Workload) -> tuple[int, int]:
    """Return the tokens that a layer computes at once in prefill: in all rows, and per row."""
    rows = _batch_rows(work)
    at_once = PREFILL_TOKENS
    if work.on_gpu:
        at_once = prefill_tokens_on_gpu(shape.hidden, shape.inner, work.length, work.dtype.itemsize)
    width = max(1, min(work.texts.prompt - work.texts.prefix, at_once // rows))
    return rows * width, width
