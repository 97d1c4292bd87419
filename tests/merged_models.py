"""What members are compared with: plain Hugging Face models with a perturbation merged in."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import germline
from germline.config import Lora, SpaceConfig
from germline.engines.master_weights import Masters
from germline.spaces.base import CoordinateSpace
from germline.types import SeedPerturbation
from tests.tiny_engines import directions, drawn


def merged(
    path: Path,
    section: SpaceConfig,
    weights: Masters,
    member: SeedPerturbation | None,
    dtype: torch.dtype,
) -> Any:
    """A plain model with the perturbation added to its weights in fp64, rounded to a dtype.

    The same object for every member: use it before the next one is merged.
    """
    plain = _plain(path, dtype)
    values = merged_values(section, weights, member)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(torch.from_numpy(values[name]))
    return plain


@cache
def _plain(path: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def merged_values(
    section: SpaceConfig, weights: Masters, member: SeedPerturbation | None
) -> dict[str, np.ndarray]:
    """Work out the weights of a member in fp64, by canonical name, without the engine's code."""
    theta = {name: tensor.double().numpy() for name, tensor in weights.tensors.items()}
    if member is not None:
        for info in weights.searched:
            scale = member.sign * member.sigma * weights.units[info.name]
            theta[info.name] = theta[info.name] + scale * drawn(member, info, section)
    if isinstance(weights.space, CoordinateSpace):
        for layer in weights.space.matrices:
            name, a, b = directions(weights, layer, section)
            change = (a * theta[name]) @ b.T
            theta[layer.name] = theta[layer.name] + (change.T if layer.transposed else change)
    for layer in weights.adapted:
        assert isinstance(section, Lora)
        a, b = (theta[name] for name in layer.adapter_names)
        change = section.alpha / section.rank * b @ a
        theta[layer.name] = theta[layer.name] + (change.T if layer.transposed else change)
    return theta


def teacher_forced(
    logits_of: Callable[[Tensor], Any],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
) -> list[Tensor]:
    """Logits before every completion token, on right-padded rows: causal, so padding is unseen."""
    rows = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
    width = max(map(len, rows))
    logits = logits_of(torch.tensor([row + [0] * (width - len(row)) for row in rows]))
    starts = [len(prompt) - 1 for prompt in prompts]
    spans = zip(logits, starts, completions, strict=True)
    return [one[start : start + len(completion)] for one, start, completion in spans]


def assert_same_tokens(run: Path, exported: Path, text: str, most: int) -> str:
    """Check that plain transformers writes with an export what a run answers; return the answer."""
    (ours,) = germline.generate(str(run), [text], chat=True, max_new_tokens=most)
    model = AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    tokens = model.generate(**prompt, max_new_tokens=most, do_sample=False)[0]
    assert tuple(tokens[prompt["input_ids"].shape[1] :].tolist()) == ours.tokens
    return ours.text
