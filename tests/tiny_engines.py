"""Engines over tiny models, built in milliseconds on one thread, and their noise drawn by hand."""

import atexit
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from germline import noise
from germline.config import Full, InProcess, Lora, LowRank, Nes, Singular, SpaceConfig, Subspace
from germline.engines.inprocess import InProcessEngine
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import DTYPES
from germline.engines.pretrained import PretrainedModel, load_pretrained
from germline.engines.toy import ToyEngine
from germline.optimizers import AscentOptimizer, Sgd
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.types import Completion, Example, Population, SeedPerturbation, TensorInfo
from tests.tiny import save_tiny

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ALL_EXPERTS = EXPERTS | {"num_experts_per_tok": 4}
"""No choice between experts: rounding cannot change which of them a token is routed to."""

# Grouped-query attention in all but GPT-2, which keeps its weights transposed; tied and untied
# heads; Qwen2 always has biases on q, k, v; Phi-3 has one layer for q, k and v and one for gate and
# up. Windows so small that every text outgrows them. Mixtures of experts, of which only the full
# space perturbs experts and routers: Qwen2-MoE has a shared expert, Qwen3-MoE dense layers.
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "llama": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "mistral": {"tie_word_embeddings": False, "sliding_window": 7},
    "gemma3": {
        "tie_word_embeddings": False,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt2": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True, "sliding_window": 5, "query_pre_attn_scalar": 16},
    "phi3": {"tie_word_embeddings": False},
    "olmo2": {"tie_word_embeddings": False},
    # SmolLM and SmolLM2 are Llamas of few heads; SmolLM3 has layers without positions.
    "llama of smollm": {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48},
    "smollm3": {"tie_word_embeddings": True, "no_rope_layers": [1, 0, 1]},
    "mixtral": {"tie_word_embeddings": False, "num_local_experts": 2},
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": EXPERTS | {"mlp_only_layers": [1]},
    "qwen2_moe of all experts": ALL_EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe of all experts": ALL_EXPERTS | {"mlp_only_layers": [1]},
    # So many tokens end a text that rows leave the batch all the time.
    "qwen2 of few words": {"eos_token_id": list(range(100, 140))},
}
# Rank 6 is above COLUMNWISE_RANK and takes the path of batched products.
SPACES: dict[str, SpaceConfig] = {
    "full": Full(),
    "rank 1": LowRank(rank=1),
    "rank 2": LowRank(rank=2),
    "rank 6": LowRank(rank=6),
    "lora": Lora(rank=2, alpha=3, init_scale_b=0.5),
    "lora of rank 6": Lora(rank=6, alpha=6, init_scale_b=0.2),
    "subspace": Subspace(dimension=12),
    "singular": Singular(top_k=4),
}
TEXTS = (
    "What is 1 + 2?",
    "fox",
    "the quick brown fox jumps. The answer is 3.",
    "What is 3 + 33 fox?",
    "the quick brown",
    "What",
)
_CHECKED: set[tuple[str, str, str]] = set()  # models of MODELS, dtypes and devices
_TEMPORARY = tempfile.TemporaryDirectory(prefix="germline-tests-")
atexit.register(_TEMPORARY.cleanup)


@cache
def folder(model: str, dtype: str = "float32") -> Path:
    """Write a tiny model, stored in a dtype, once per test process."""
    path = Path(_TEMPORARY.name) / dtype / model
    return save_tiny(path, model.split()[0], dtype=DTYPES[dtype], **MODELS[model])


def beside_experts(model: str, section: SpaceConfig) -> SpaceConfig:
    """Leave routers and experts unperturbed, and a gate of one row, where a model has them."""
    if isinstance(section, Full) or not ("moe" in model or "mixtral" in model):
        return section
    exclude = ("*.shared_expert_gate.*",) if "qwen2_moe" in model else ()
    return section.model_copy(update={"unsupported": "skip", "exclude": exclude})


def inprocess(
    model: str | PretrainedModel = "qwen2",
    space: SpaceConfig | None = None,
    optimizer: AscentOptimizer | None = None,
    sigma_unit: str = "constant",
    run_seed: int = 0,
    **settings: str | int,
) -> InProcessEngine:
    """Build an engine over a model of `MODELS`, a folder or a loaded one, on one thread in fp32."""
    section = InProcess(**{"device": "cpu", "dtype": "float32", "threads": 1, **settings})
    key = (model if isinstance(model, str) else "", section.dtype, section.device)
    if isinstance(model, str):
        model = copy_of(_loaded(model)) if model in MODELS else load_pretrained(model)
    built = None if space is None else make_space(space, run_seed)
    unchecked = mock.patch("germline.engines.inprocess.check_cached_logits")
    with unchecked if key in _CHECKED else nullcontext():  # the check is half of the time
        made = InProcessEngine(model, built, optimizer or Sgd(), section, sigma_unit)
    _CHECKED.update({key} if key[0] in MODELS else ())
    return made


@cache
def _loaded(model: str) -> PretrainedModel:
    return load_pretrained(str(folder(model)))


def copy_of(loaded: PretrainedModel) -> PretrainedModel:
    """Copy a model that was loaded once: loading takes 2/3 of building an engine."""
    return replace(loaded, model=deepcopy(loaded.model), tokenizer=deepcopy(loaded.tokenizer))


def engine(
    model: str,
    space: SpaceConfig,
    optimizer: AscentOptimizer | None = None,
    sigma_unit: str = "constant",
) -> InProcessEngine | ToyEngine:
    """Build the toy engine, or an inprocess one over a model of `MODELS`."""
    if model == "toy":
        return ToyEngine(make_space(space), optimizer or Sgd(), sigma_unit)
    return inprocess(model, space, optimizer, sigma_unit)


def population(members: int = 6, sigma: float = 0.02, generation: int = 0) -> Population:
    """Ask for antithetic pairs of run seed 3."""
    strategy = make_strategy(Nes(population=members, sigma=sigma), run_seed=3, generations=100)
    return strategy.ask(generation)


def examples(texts: Sequence[str] = TEXTS, *, chat: bool = False) -> list[Example]:
    """One example per text."""
    return [Example(index, text, "", chat) for index, text in enumerate(texts)]


def tokens(completions: Sequence[Sequence[Completion]]) -> list[list[tuple[int, ...]]]:
    """Keep the token ids of `[members][examples]` completions."""
    return [[completion.tokens for completion in row] for row in completions]


@contextmanager
def tokens_read(engine: InProcessEngine) -> Iterator[list[int]]:
    """Count the tokens of each forward pass, padding included, during a `with` block."""
    sizes: list[int] = []
    table = engine.model.get_input_embeddings()

    def count(_table: object, inputs: tuple[torch.Tensor], _output: object) -> None:
        sizes.append(inputs[0].numel())

    handle = table.register_forward_hook(count)
    try:
        yield sizes
    finally:
        handle.remove()


def drawn(member: SeedPerturbation, info: TensorInfo, space: SpaceConfig) -> np.ndarray:
    """Draw a member's unit noise in fp64 from the definition, without the space's own code."""
    where = (member.run_seed, member.generation, member.direction)
    if not isinstance(space, LowRank):
        size = int(np.prod(info.shape))
        return noise.weight_noise(*where, info.name, size).astype(np.float64).reshape(info.shape)
    out, into = info.shape
    a = noise.weight_noise(*where, f"{info.name}/a", out * space.rank).reshape(out, space.rank)
    b = noise.weight_noise(*where, f"{info.name}/b", into * space.rank).reshape(into, space.rank)
    return a.astype(np.float64) @ b.astype(np.float64).T / np.sqrt(space.rank)


def directions(
    weights: Masters, layer: TensorInfo, space: SpaceConfig
) -> tuple[str, np.ndarray, np.ndarray]:
    """Name the coordinates of a layer and work out A and B in fp64, without the space's own code.

    Run seed 0; sigma in weight units.
    """
    out, into = layer.out_in_features
    if isinstance(space, Subspace):
        a, b = (
            np.stack(
                [noise.weight_noise(0, 0, k, f"{layer.name}/subspace/{side}", size) for k in all_k]
            )
            for all_k in [range(space.dimension)]
            for side, size in (("a", out), ("b", into))
        )
        return "subspace.coordinates", a.T / np.sqrt(float(space.dimension)), b.T.astype(np.float64)
    assert isinstance(space, Singular)
    weight = weights.tensors[layer.name].double().numpy()
    u, _, v = np.linalg.svd(weight.T if layer.transposed else weight, full_matrices=False)
    name = layer.name.removesuffix(".weight") + ".singular"
    return name, u[:, : space.top_k], v[: space.top_k].T


def bits(engine: InProcessEngine | ToyEngine) -> dict[str, torch.Tensor]:
    """Copy every tensor an evaluation must leave alone: masters, moments and the serving copy."""
    weights = engine.weights
    kept = {**weights.tensors, **weights.optimizer.state}
    serving = engine.serving if isinstance(engine, InProcessEngine) else {}
    kept.update({f"serving {name}": tensor for name, tensor in serving.items()})
    return {name: tensor.clone() for name, tensor in kept.items()}


def same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Tell whether two copies by `bits` agree in every bit."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)
