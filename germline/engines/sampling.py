"""Choose the next token of every row: greedy, or sampled with luck that all members share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from germline import noise
from germline.engines.sorting import sort_descending
from germline.types import Decoding, Example


def draw_sampling_noise(examples: Sequence[Example], decoding: Decoding) -> Tensor:
    """Draw the uniforms of seeded sampling, `[examples, max_new_tokens]`, same for all members."""
    return torch.from_numpy(
        noise.sampling_uniforms(
            decoding.noise_seed,
            decoding.noise_generation,
            decoding.noise_stream,
            [example.index for example in examples],
            decoding.max_new_tokens,
        )
    )


def choose_tokens(logits: Tensor, sampling_noise: Tensor, decoding: Decoding) -> Tensor:
    """Return one token id per row.

    Sampling inverts the cumulative distribution at `luck`, so members that agree on the
    distribution draw the same
    token: differences in reward come from the weights, not from the dice.

    Args:
        logits: `[rows, vocabulary]`.
        sampling_noise: `[rows]` uniforms in (0, 1); unused when greedy.
        decoding: temperature and top_p.
    """
    if decoding.temperature == 0:
        # The token of argmax, ties included. In bf16 on a CPU, argmax over a vocabulary of 150,000
        # takes five times as long: 8 % of a generation at 0.5B.
        return logits.max(-1).indices
    probabilities = torch.softmax(logits.float() / decoding.temperature, dim=-1)
    ordered, tokens = sort_descending(probabilities)
    mass = ordered.cumsum(-1)
    # The smallest set of likely tokens whose mass reaches top_p; at least one.
    kept = (mass - ordered) < decoding.top_p
    total = (ordered * kept).sum(-1, keepdim=True)
    target = sampling_noise.to(total)[:, None] * total
    place = (mass < target).sum(-1, keepdim=True)
    # Weights thrown far off give logits that are no numbers: such a member writes something too.
    place = torch.minimum(place, kept.sum(-1, keepdim=True) - 1).clamp_(min=0)
    return tokens.gather(-1, place)[:, 0]
