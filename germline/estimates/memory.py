"""Memory of a run: one equation for each part.

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

The start model of a KL penalty (`task.kl_coef`) has (1) and (3) again, with nothing searched.

(1) to (4) are allocated during the whole run, (5) to (8) while completions are generated, (9)
during the update, and (10), with (5), while members score completions and while strategy.sigma=auto
is calibrated before the first generation. So a run needs (1) to (4) plus the largest of (5) to (8),
(9), and (5) with (10). Where the center alone generates, there is no (5) during generation. The
numbers 3 and 4 in (7) count the tensors that a gated MLP holds at once: residual, its norm, the two
projections, their product, and the output. Attention (transformers' sdpa with a mask) repeats keys
and values for every query head.

Limits: the estimates have not been compared with the memory of a GPU, and files that are mapped
while a model is loaded are not counted, because the system may free them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from germline.config import AutoSigma, Config, InProcess
from germline.engines.completion_scorer import LOGITS_AT_ONCE, TOKENS_AT_ONCE
from germline.engines.cpu_kernels import SMALL_SCORES
from germline.engines.decode_batch import (
    PREFILL_TOKENS,
    SMALLEST_BATCH,
    prefill_tokens_on_gpu,
)
from germline.engines.model_tensors import holds_exactly
from germline.estimates.model_shape import ModelShape
from germline.estimates.workload import Workload
from germline.evaluation.member_kl import TOKENS, count_examples

FP32 = 4

PROGRAM_BYTES = 510e6
"""Resident memory of Python, torch and transformers before a weight is loaded (CPU, Linux)."""

GPU_PROGRAM_BYTES = 2e9
"""The same with the libraries of CUDA: assumed, not measured here."""

CONTEXT_BYTES = 500e6
"""Device memory of a CUDA context and cuBLAS's workspace: assumed, not measured here."""

HALF_SCRATCH_BYTES, HALF_SCRATCH_SHARE = 35e6, 0.07
"""Memory that products and digests of half precision keep on a CPU: fixed, and per weight byte."""

SAMPLING_BYTES = 28
"""Bytes per logit while a token is sampled: fp32 probabilities, sorted ones, sums, indices."""

SERVED_ROWS = 256
"""Texts that vLLM generates at once by default (max_num_seqs); others wait."""

Place = Literal["device", "host"]
Phase = Literal["always", "generation", "scoring", "update", "calibration"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Part:
    """One line of an estimate.

    Attributes:
        name: name of the part.
        bytes: its size.
        place: the memory that holds it.
        phase: the phase in which it is allocated; `always` means every phase.
    """

    name: str
    bytes: int | float
    place: Place
    phase: Phase = "always"


def weight_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Return equation (1)."""
    return shape.numbers * dtype.itemsize


def master_bytes(work: Workload, *, shared: bool) -> int:
    """Return equation (2); `shared` means that the serving copy is the master."""
    return 0 if shared else work.searched * FP32


def stored_bytes(shape: ModelShape, work: Workload, searched_of_model: int) -> int:
    """Return equation (3)."""
    if holds_exactly(work.dtype, shape.stored_dtype):
        return 0
    return (shape.numbers - searched_of_model) * shape.stored_dtype.itemsize


def moment_bytes(work: Workload) -> int:
    """Return equation (4)."""
    return work.searched * work.moment_bytes


def member_bytes(work: Workload) -> int:
    """Return equation (5): factors in fp32 while they are drawn, and in the serving dtype."""
    if work.stacked > 1:
        return work.stacked * work.searched * work.dtype.itemsize + work.largest * FP32
    return work.members_at_once * work.member_numbers * (work.dtype.itemsize + FP32)


def kv_bytes(shape: ModelShape, work: Workload) -> int:
    """Return equation (6)."""
    return batch_rows(work) * work.length * shape.kv_numbers * work.dtype.itemsize


def activation_bytes(shape: ModelShape, work: Workload, tokens: int, new: int) -> int:
    """Return equation (7).

    Args:
        shape: shape of the model.
        work: work of a generation.
        tokens: tokens that a layer computes at once, in all rows.
        new: tokens that it computes per row.
    """
    of_mlp = tokens * (3 * shape.inner + 4 * shape.hidden)
    rows = batch_rows(work)
    scores = shape.heads // shape.kv_heads * new * work.length
    repeated = 2 * rows * shape.heads * shape.head_dim * work.length
    if not work.on_gpu and work.dtype == torch.float32 and scores <= SMALL_SCORES:
        repeated = rows * shape.heads * new * work.length  # cpu_kernels multiplies these once
    mask = 2 * rows * new * work.length
    return (of_mlp + repeated + mask) * work.dtype.itemsize


def logit_bytes(shape: ModelShape, work: Workload) -> int:
    """Return equation (8)."""
    each = work.dtype.itemsize + (SAMPLING_BYTES if work.sampled else 0)
    return batch_rows(work) * shape.vocabulary * each


def update_bytes(work: Workload) -> int:
    """Return equation (9)."""
    return work.largest * FP32


def half_scratch_bytes(shape: ModelShape, work: Workload) -> float:
    """Return the memory a CPU needs in addition to half-precision weights, which was measured."""
    weights = weight_bytes(shape, work.dtype)
    return HALF_SCRATCH_BYTES + min(HALF_SCRATCH_SHARE * weights, 80e6)


def calibration_bytes(shape: ModelShape, work: Workload, pairs: int) -> int:
    """Return equation (10): members read the prompts, and then the center's texts piece by piece.

    All prompts are taken to be as long as the longest one, and all texts to have the most tokens.
    The cache of a piece is a copy, and the log-probabilities of a few rows are computed at a time.
    """
    new = min(TOKENS, work.texts.new_tokens)
    return reading_bytes(shape, work, count_examples(new, 2 * pairs), new)


def texts_at_once(work: Workload, rows: int, new: int) -> tuple[int, int]:
    """Return the members and the texts of each that are read at once, by their number of tokens.

    Args:
        work: work of a generation.
        rows: texts of a member.
        new: tokens of each whose log-probabilities are computed.
    """
    length = work.texts.prompt + new
    members = min(max(1, TOKENS_AT_ONCE // (rows * length)), work.members)
    return members, min(rows, max(1, TOKENS_AT_ONCE // length))


def reading_bytes(shape: ModelShape, work: Workload, rows: int, new: int) -> int:
    """Return equation (10) of so many texts of a member; see `texts_at_once`."""
    length = work.texts.prompt + new
    members, width = texts_at_once(work, rows, new)
    members = min(members, work.stacked or members)
    texts = members * width
    most = max(1, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // shape.vocabulary))
    at_once = min(texts, max(members, most // new))
    tokens = min(at_once * new, max(at_once, most))
    read = (texts * work.texts.prompt + at_once * length) * shape.kv_numbers
    of_mlp = tokens * (3 * shape.inner + 4 * shape.hidden)
    return (read + max(tokens * shape.vocabulary, of_mlp)) * work.dtype.itemsize


def batch_rows(work: Workload) -> int:
    """Return the rows of a microbatch with padding; microbatches of an engine run in turn."""
    if work.is_served:
        return min(work.rows, SERVED_ROWS)
    slots = -(-work.rows // work.generating)
    return work.generating * max(slots, -(-SMALLEST_BATCH // work.generating))


def prefill_tokens(shape: ModelShape, work: Workload) -> tuple[int, int]:
    """Return the tokens that a layer computes at once in prefill: in all rows, and per row."""
    rows = batch_rows(work)
    at_once = PREFILL_TOKENS
    if work.on_gpu:
        at_once = prefill_tokens_on_gpu(shape.hidden, shape.inner, work.length, work.dtype.itemsize)
    width = max(1, min(work.texts.prompt - work.texts.prefix, at_once // rows))
    return rows * width, width


def memory_parts(config: Config, shape: ModelShape, work: Workload) -> list[Part]:
    """Return every part of the memory of one engine, with its place and phase.

    Served engines (vLLM, SGLang) divide their share of the device between weights and KV cache;
    their masters are on the host.
    """
    if config.engine.is_served:
        return _served_parts(config, shape, work)
    masters_on_device = (
        isinstance(config.engine, InProcess) and config.engine.master_device == "device"
    )
    masters: Place = "device" if masters_on_device else "host"
    shared = (
        work.searches_weights
        and not work.stacked
        and work.dtype == torch.float32
        and (masters_on_device or not work.on_gpu)
    )
    stored = stored_bytes(shape, work, work.searched if work.searches_weights else 0)
    most_tokens = max(
        activation_bytes(shape, work, *prefill_tokens(shape, work)),
        activation_bytes(shape, work, batch_rows(work), 1),
    )
    parts = [
        Part("weights", weight_bytes(shape, work.dtype), "device"),
        Part("fp32 masters", master_bytes(work, shared=shared), masters),
        Part("optimizer moments", moment_bytes(work), masters),
        Part("stored weights", stored, "host"),
        Part("members", member_bytes(work), "device", "scoring" if work.scored else "generation"),
        Part("KV cache", kv_bytes(shape, work), "device", "generation"),
        Part("activations", most_tokens, "device", "generation"),
        Part("logits", logit_bytes(shape, work), "device", "generation"),
        Part("update", update_bytes(work), masters, "update"),
        Part("program", GPU_PROGRAM_BYTES if work.on_gpu else PROGRAM_BYTES, "host"),
    ]
    if work.scored:
        needed = reading_bytes(shape, work, work.scored, work.texts.new_tokens)
        parts.append(Part("scoring", needed, "device", "scoring"))
    sigma = getattr(config.search, "sigma", None)
    if isinstance(sigma, AutoSigma):
        # Members take their part of the generation again.
        needed = member_bytes(work) + calibration_bytes(shape, work, sigma.tried_pairs)
        parts.append(Part("calibration of sigma", needed, "device", "calibration"))
    if config.task.kl_coef is not None:
        parts.append(Part("start model", weight_bytes(shape, work.dtype), "device"))
        parts.append(Part("start model, stored", stored_bytes(shape, work, 0), "host"))
    if work.on_gpu:
        parts.append(Part("CUDA context", CONTEXT_BYTES, "device"))
    elif work.dtype.itemsize < FP32:
        parts.append(Part("half-precision scratch", half_scratch_bytes(shape, work), "host"))
    return parts


def _served_parts(config: Config, shape: ModelShape, work: Workload) -> list[Part]:
    spread = getattr(config.engine, "tensor_parallel", 1)
    frozen = shape.numbers - (work.searched if work.searches_weights else 0)
    return [
        Part("weights", weight_bytes(shape, work.dtype) / spread, "device"),
        Part(
            "members",
            work.members_at_once * work.member_numbers * work.dtype.itemsize / spread,
            "device",
        ),
        Part("KV cache", kv_bytes(shape, work) / spread, "device", "generation"),
        Part("logits", logit_bytes(shape, work) / spread, "device", "generation"),
        Part("CUDA context", CONTEXT_BYTES, "device")
        if work.on_gpu
        else Part("program of the engine", PROGRAM_BYTES, "host"),
        Part("fp32 masters", work.searched * FP32, "host"),
        Part("optimizer moments", moment_bytes(work), "host"),
        Part("stored weights", frozen * shape.stored_dtype.itemsize, "host"),
        Part("update", update_bytes(work), "host", "update"),
        Part("program", GPU_PROGRAM_BYTES if work.on_gpu else PROGRAM_BYTES, "host"),
    ]


def total(parts: Sequence[Part], place: Place, *, on_gpu: bool) -> float:
    """Return the peak bytes of one place; on a CPU every part is on the host."""
    if not on_gpu:
        parts = [replace(part, place="host") for part in parts]
    always, *phases = (
        sum(part.bytes for part in parts if part.place == place and part.phase == phase)
        for phase in PHASES
    )
    return float(always + max(phases))
