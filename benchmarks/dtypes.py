"""How far a member served in bf16 or fp16 is from the merged model, in roundings of that dtype.

    python -m benchmarks.dtypes                                # the table of docs/results.md
    python -m benchmarks.dtypes --models qwen3 --by-space      # one row per space

The models have random weights, belong to many families, and are stored in the dtype in which they
are served. A population of every space generates greedy completions. The engine's logits at their
tokens are compared with those of a plain Hugging Face model in fp32, into whose weights the
member's perturbation was merged in fp64.

The bounds follow from eps, the distance from 1 to the next number of the dtype. Rounding changes a
number by at most eps / 2 of its size. The error of a logit is the sum of the errors of R successive
roundings: 16 in a layer (norms, projections, rotation, attention, gate, sums) and 4 outside the
layers. Independent errors add up as the square root of their number:

    (1)  root mean square error  <=  eps / 2 sqrt(R) rms(logits)
    (2)  error of any logit      <=  eps sqrt(R) max |logits|  =  b
    (3)  divergence, any place   <=  b^2 / 2                        (Hoeffding's lemma)

So a greedy token can differ from that of the merged model only if the merged model's logits of the
two tokens differ by less than 2 b. The bounds hold for weights like those of an initialized or a
trained model. Very sharp attention multiplies errors and would break (1) and (2), so the error of
plain transformers with the merged weights in the same dtype is measured too.

The bounds do not hold for a mixture of experts: if the router's scores of two experts are nearly
equal, rounding can send a token to another expert, and its logits change by more than rounding
errors. The routers of models named `of all experts` choose all of their experts; `qwen3_moe`
chooses 2 of 4.

Columns are the worst over spaces, members and tokens, except means. `error` is the left side of (1)
over rms(logits), in eps; `transformers` is the same for plain transformers; `of bound` is the
largest error of a logit over b; `KL` is the divergence from the merged model, in nats; `ties`
counts greedy tokens that are not the merged model's first choice; `gap` is the largest difference
of its logits at these tokens, over 2 b.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from germline.config import Full, Lora, LowRank, Singular, SpaceConfig, Subspace
from germline.engines.inprocess import InProcessEngine
from germline.engines.model_tensors import DTYPES
from germline.types import Completion, Decoding, SeedPerturbation
from tests.merged_models import merged, teacher_forced
from tests.tiny_engines import (
    beside_experts,
    bits,
    examples,
    folder,
    inprocess,
    population,
    same_bits,
)

NARROW = ("bfloat16", "float16")
MODELS = (
    "qwen2",
    "qwen3",
    "llama",
    "mistral",
    "gemma2",
    "gemma3",
    "phi3",
    "olmo2",
    "llama of smollm",
    "smollm3",
    "gpt2",
    "mixtral",
    "qwen2_moe of all experts",
    "qwen3_moe of all experts",
)
ROUTED = ("qwen3_moe",)
"""Models that are measured and printed, but need not satisfy the bounds."""
SPACES: dict[str, SpaceConfig] = {
    "full": Full(),
    "rank 1": LowRank(rank=1),
    "rank 6": LowRank(rank=6),
    "lora": Lora(rank=2, alpha=4, init_scale_b=0.1),
    "subspace": Subspace(dimension=12),
    "singular": Singular(top_k=4),
}
NEW = 8
ROUNDINGS_PER_LAYER, ROUNDINGS_AROUND = 16, 4


@dataclass(frozen=True)
class Result:
    """The measurements of one model, dtype and space; see the top of this file.

    Attributes:
        error: root mean square error over that of the logits, in eps.
        transformers: the same for plain transformers.
        rms_bound: bound (1), in the same unit.
        of_bound: largest error of a logit over bound (2).
        mean_kl: mean divergence over all tokens, in nats.
        worst_kl: largest divergence, in nats.
        kl_bound: bound (3).
        tokens: number of greedy tokens.
        ties: number of tokens that are not the merged model's first choice.
        gap: largest difference of the merged model's logits at these, over twice bound (2).
        leaves_no_trace: whether evaluating changed no bit of masters, moments and serving copy.
    """

    error: float
    transformers: float
    rms_bound: float
    of_bound: float
    mean_kl: float
    worst_kl: float
    kl_bound: float
    tokens: int
    ties: int
    gap: float
    leaves_no_trace: bool


class Logits(NamedTuple):
    """Logits at the same tokens, `[tokens, vocabulary]`, all in fp32.

    Attributes:
        ours: logits of members in the engine.
        exact: logits of plain transformers with the merged weights, in fp32.
        narrow: the same in the engine's serving dtype.
    """

    ours: Tensor
    exact: Tensor
    narrow: Tensor


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Members in half precision and merged models.")
    parser.add_argument("--models", nargs="+", default=[*MODELS, *ROUTED])
    parser.add_argument("--dtypes", nargs="+", default=NARROW, choices=DTYPES)
    parser.add_argument("--spaces", nargs="+", default=list(SPACES), choices=SPACES)
    parser.add_argument("--by-space", action="store_true", help="one row per space")
    arguments = parser.parse_args()
    for line in report(arguments.models, arguments.dtypes, arguments.spaces, arguments.by_space):
        print(line, flush=True)


def report(
    models: Sequence[str],
    dtypes: Sequence[str],
    spaces: Sequence[str],
    by_space: bool,  # noqa: FBT001 - a command line option
) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{len(spaces)} spaces: {', '.join(spaces)}; torch {torch.__version__}\n"
    yield (
        "| model | dtype | spaces | error | transformers | bound (1) | of bound (2) | mean KL | "
        "worst KL | ties / tokens | gap |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for dtype in dtypes:
        for model in models:
            found = {space: measured(model, dtype, space) for space in spaces}
            groups = {space: [one] for space, one in found.items()}
            for name, group in (groups if by_space else {"all": [*found.values()]}).items():
                yield f"| {model} | {dtype} | {name} | {_cells(group)} |"


def _cells(group: Sequence[Result]) -> str:
    ties, tokens = (sum(getattr(one, name) for one in group) for name in ("ties", "tokens"))
    return " | ".join(
        (
            f"{max(one.error for one in group):.2f}",
            f"{max(one.transformers for one in group):.2f}",
            f"{group[0].rms_bound:.2f}",
            f"{max(one.of_bound for one in group):.2f}",
            f"{sum(one.mean_kl for one in group) / len(group):.1e}",
            f"{max(one.worst_kl for one in group):.1e}",
            f"{ties} / {tokens}",
            f"{max(one.gap for one in group):.2f}",
        )
    )


@cache
@torch.inference_mode()
def measured(model: str, dtype: str, space: str) -> Result:
    """Generate with a population of a space, and compare its logits with those of merged models."""
    section = beside_experts(model, SPACES[space])
    engine = inprocess(str(folder(model, dtype)), section, dtype=dtype)
    digest, before = engine.weights.digest(), bits(engine)
    members: list[SeedPerturbation | None] = [*population(2).seed_perturbations(), None]
    written = engine.generate(members, examples(), Decoding(NEW))
    read = [torch.cat(rows).float() for rows in engine.read(members, examples(), written)]
    untouched = engine.weights.digest() == digest and same_bits(before, bits(engine))
    exact, narrow = (
        torch.cat(
            [
                merged_logits(engine, section, member, row, kind)
                for member, row in zip(members, written, strict=True)
            ]
        )
        for kind in (torch.float32, DTYPES[dtype])
    )
    chosen = torch.tensor([token for row in written for one in row for token in one.tokens])
    layers = engine.model.config.get_text_config().num_hidden_layers
    logits = Logits(torch.cat(read), exact, narrow)
    return compared(logits, chosen, dtype, layers, leaves_no_trace=untouched)


def merged_logits(
    engine: InProcessEngine,
    section: SpaceConfig,
    member: SeedPerturbation | None,
    written: Sequence[Completion],
    dtype: torch.dtype,
) -> Tensor:
    """Return the logits of plain transformers with a merged member, `[tokens, vocabulary]`.

    Args:
        engine: holds the masters.
        section: config section of the space.
        member: the member to merge; None for the center.
        written: its completions of `examples()`, at whose tokens logits are computed.
        dtype: dtype in which transformers computes; the result is fp32.
    """
    prompts = [engine.encoder.encode(example) for example in examples()]
    tokens = [one.tokens for one in written]
    with torch.inference_mode(mode=False), torch.no_grad():
        plain = merged(Path(engine.pretrained.source), section, engine.weights, member, dtype)
        return torch.cat(teacher_forced(lambda ids: plain(ids).logits.float(), prompts, tokens))


def logit_bound(dtype: str, layers: int, logits: Tensor) -> float:
    """Return b of bound (2), for logits of the merged model."""
    eps, roundings = torch.finfo(DTYPES[dtype]).eps, _roundings(layers)
    return eps * math.sqrt(roundings) * float(logits.abs().max())


def compared(
    logits: Logits, chosen: Tensor, dtype: str, layers: int, *, leaves_no_trace: bool
) -> Result:
    """Compute a result.

    Args:
        logits: logits at all generated tokens.
        chosen: the generated tokens.
        dtype: serving dtype of the engine.
        layers: number of layers of the model.
        leaves_no_trace: see `Result`.
    """
    ours, exact, narrow = logits
    unit, bound = _rms(exact) * torch.finfo(DTYPES[dtype]).eps, logit_bound(dtype, layers, exact)
    logs = exact.log_softmax(-1)
    divergence = (logs.exp() * (logs - ours.log_softmax(-1))).sum(-1).double()
    gaps = exact.max(-1).values - exact.gather(-1, chosen[:, None])[:, 0]
    return Result(
        error=_rms(ours - exact) / unit,
        transformers=_rms(narrow - exact) / unit,
        rms_bound=math.sqrt(_roundings(layers)) / 2,
        of_bound=float((ours - exact).abs().max()) / bound,
        mean_kl=float(divergence.mean()),
        worst_kl=float(divergence.max()),
        kl_bound=bound**2 / 2,
        tokens=len(chosen),
        ties=int((gaps > 0).sum()),
        gap=float(gaps.max()) / (2 * bound),
        leaves_no_trace=leaves_no_trace,
    )


def _roundings(layers: int) -> int:
    return ROUNDINGS_PER_LAYER * layers + ROUNDINGS_AROUND


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


if __name__ == "__main__":
    main()
