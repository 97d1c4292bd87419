"""Baselines: the usual evaluation of a population, and a lower bound of the time of any evaluation.

`evaluate_one_at_a_time` is the loop of the first scripts and libraries of ES for language models
(Qiu et al. 2025, arXiv 2509.24372, and its successor library), written anew: add a member's noise
to every parameter in place, generate with Hugging Face, draw the noise again and subtract it.
`linear_floor` computes the model's matrix products alone.

Two properties of the original are kept, because they do not change its speed. The generator is
seeded with the member's seed for every tensor, so tensors of one shape get the same noise.
Subtracting leaves a rounding error in the weights. This project does neither; compare speed only,
and load the weights again before another use of the model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import nn

PromptTokens = Mapping[str, torch.Tensor]
"""`input_ids` and `attention_mask`, both `[prompts, tokens]` and padded on the left."""


@torch.inference_mode()
def evaluate_one_at_a_time(
    model: Any, prompts: PromptTokens, seeds: Sequence[int], sigma: float, max_new_tokens: int
) -> list[Int[torch.Tensor, "prompts new_tokens"]]:
    """Generate greedy answers of every member to all prompts, one member after another.

    Args:
        model: a Hugging Face causal language model; its weights are restored up to rounding.
        prompts: output of a tokenizer with `padding_side="left"`, on the model's device.
        seeds: one seed per member.
        sigma: standard deviation of the noise, in weight units.
        max_new_tokens: `generate` stops earlier if every row has an end-of-sequence token of
            `model.generation_config`; set that to None to time a fixed number of tokens.

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
        noise = torch.randn(  # noqa: TID251 - the usual noise is timed here
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
    microbatch_rows: int | None = None,
    shared: tuple[int, int] = (0, 1),
) -> Callable[[], None]:
    """Prepare only the matrix products of prefill and decoding, as a lower bound.

    Attention, norms, activations, biases, sampling and Python outside the products are left out.
    Inputs are constant and all outputs of one width use one buffer, so no memory is allocated
    between products and caches stay warm; both only lower the bound.

    Args:
        model: a causal language model whose matrix products are `nn.Linear` modules.
        rows: number of sequences, members times prompts.
        prompt_tokens: length of a prompt; the head computes its last position only.
        new_tokens: tokens generated per sequence, the first of them by the prefill.
        microbatch_rows: sequences in one product, for an engine with microbatches; default: all.
        shared: number of tokens that all prompts begin with, and number of sequences of a member
            that share them, for an engine that computes them once per member.

    Returns:
        A function that computes one pass over all rows.
    """
    inner, head = _linear_weights(model)
    most = min(microbatch_rows or rows, rows)
    sizes = [min(most, rows - start) for start in range(0, rows, most)]
    prefix, sharing = shared
    prefill = {
        n: _products(inner, n // sharing * prefix)
        + _products(inner, n * (prompt_tokens - prefix))
        + _products([head], n)
        for n in set(sizes)
    }
    decode = {n: _products([*inner, head], n) for n in set(sizes)}

    @torch.inference_mode()
    def run() -> None:
        for size in sizes:
            _multiply(prefill[size])
            for _ in range(new_tokens - 1):
                _multiply(decode[size])
        _wait_for(head.device)

    return run


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
    """Prepare one product per weight; products of equal width share an aligned buffer."""
    inputs = {weight.shape[1]: weight.new_ones(rows, weight.shape[1]) for weight in weights}
    outputs = {
        out: inputs[into].new_empty(len(inputs[into]), out)
        for out, into in (weight.shape for weight in weights)
    }
    return [(inputs[weight.shape[1]], weight.t(), outputs[weight.shape[0]]) for weight in weights]


def _multiply(products: Sequence[Product]) -> None:
    for inputs, weight, output in products:
        torch.mm(inputs, weight, out=output)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
