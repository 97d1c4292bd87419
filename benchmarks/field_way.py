"""How the field evaluates a population, and the least any way could take: what we compare with.

`evaluate_one_at_a_time` is the loop of the scripts and libraries ES for language models started
with (Qiu et al. 2025, arXiv 2509.24372, and its successor library), in our own words: add a
member's noise to every parameter in place, let Hugging Face `generate` answer the member's prompts,
draw the noise again and subtract it. `linear_floor` plays the model's matrix products alone.

Kept as the field has it, because it costs the same either way: the generator starts from the
member's seed again for every tensor (so tensors of one shape get the same noise), and subtracting
leaves a rounding error in the weights. The project itself does neither; compare speed only, and
load the weights anew before anything else uses the model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import nn

from germline.engines.cpu_kernels import align_rows

PromptTokens = Mapping[str, torch.Tensor]
"""`input_ids` and `attention_mask`, both `[prompts, tokens]` and padded on the left."""


@torch.inference_mode()
def evaluate_one_at_a_time(
    model: Any, prompts: PromptTokens, seeds: Sequence[int], sigma: float, max_new_tokens: int
) -> list[Int[torch.Tensor, "prompts new_tokens"]]:
    """Let every member answer all prompts greedily, one member after another.

    Args:
        model: a Hugging Face causal language model; rounding apart, its weights end as they began.
        prompts: what a tokenizer with `padding_side="left"` returns, on the model's device.
        seeds: one per member.
        sigma: standard deviation of the noise, in weight units.
        max_new_tokens: `generate` ends earlier when every prompt has met an end-of-sequence token
            of `model.generation_config`; set that to None to time a fixed number of tokens.

    Returns:
        The new tokens of each member, padded after the end.
    """
    answers = []
    for seed in seeds:
        add_noise(model, seed, sigma)
        answers.append(_generate(model, prompts, max_new_tokens))
        add_noise(model, seed, -sigma)
    return answers


@torch.no_grad()
def add_noise(model: nn.Module, seed: int, scale: float) -> None:
    """Add `scale` times the noise of a seed to every parameter in place, tied ones once."""
    for parameter in model.parameters():
        generator = torch.Generator(parameter.device).manual_seed(seed)
        noise = torch.randn(  # noqa: TID251 - the field's noise is what is timed here
            parameter.shape,
            generator=generator,
            device=parameter.device,
            dtype=parameter.dtype,
        )
        parameter.add_(scale * noise)


def _generate(
    model: Any, prompts: PromptTokens, max_new_tokens: int
) -> Int[torch.Tensor, "prompts new_tokens"]:
    tokens = model.generate(
        **prompts, max_new_tokens=max_new_tokens, do_sample=False, use_cache=True
    )
    return tokens[:, prompts["input_ids"].shape[1] :]


def linear_floor(
    model: nn.Module,
    *,
    rows: int,
    prompt_tokens: int,
    new_tokens: int,
    cell_rows: int | None = None,
    shared: tuple[int, int] = (0, 1),
) -> Callable[[], None]:
    """Prepare the matrix products of prefill and decoding, and nothing else: a lower bound.

    Attention, norms, activations, biases, sampling and Python outside the products are left out.
    Inputs are constant and outputs go into one buffer per width again and again, so no memory
    is asked for in between and caches stay warm; both only lower the floor.

    Args:
        model: a causal language model whose matrix products are `nn.Linear` modules.
        rows: sequences in all, members times prompts.
        prompt_tokens: length of a prompt; the head sees its last position only.
        new_tokens: tokens generated per sequence, the first of them by the prefill.
        cell_rows: sequences in one product, for an engine that works cell by cell; default: all.
        shared: how many tokens prompts begin with in common, and how many sequences of a member
            share them, for an engine that computes those once per member.

    Returns:
        One pass over all rows, to be timed.
    """
    inner, head = _linear_weights(model)
    size = min(cell_rows or rows, rows)
    cells = [min(size, rows - start) for start in range(0, rows, size)]
    prefix, sharing = shared
    prefill = {
        n: _products(inner, n // sharing * prefix)
        + _products(inner, n * (prompt_tokens - prefix))
        + _products([head], n)
        for n in set(cells)
    }
    decode = {n: _products([*inner, head], n) for n in set(cells)}

    @torch.inference_mode()
    def play() -> None:
        for cell in cells:
            _multiply(prefill[cell])
            for _ in range(new_tokens - 1):
                _multiply(decode[cell])
        _wait_for(head.device)

    return play


def _linear_weights(model: nn.Module) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the weights of the decoder's linear layers, and of the head apart."""
    linear = {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    head = linear.pop("lm_head")
    return list(linear.values()), head


Product = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Input `[rows, in]`, weight `[in, out]` and output `[rows, out]`."""


def _products(weights: Sequence[torch.Tensor], rows: int) -> list[Product]:
    """Prepare one product per weight; those of equal width share a buffer, aligned as ours are."""
    inputs = {weight.shape[1]: weight.new_ones(rows, weight.shape[1]) for weight in weights}
    outputs = {
        weight.shape[0]: align_rows(inputs[weight.shape[1]], weight.shape[0]) for weight in weights
    }
    return [(inputs[weight.shape[1]], weight.t(), outputs[weight.shape[0]]) for weight in weights]


def _multiply(products: Sequence[Product]) -> None:
    for inputs, weight, output in products:
        torch.mm(inputs, weight, out=output)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
