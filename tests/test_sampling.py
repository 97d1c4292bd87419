"""How tokens are chosen: fast ways on a CPU choose what torch's own operations choose."""

import pytest
import torch

from germline import noise
from germline.engines.sampling import choose_tokens, draw_sampling_noise, sort_descending
from germline.types import Decoding, Example

NAN, INF = float("nan"), float("inf")
STRANGE = [
    [0.0, 3.0, 3.0, 1.0],
    [-INF, -INF, -INF, -INF],
    [1.0, NAN, INF, NAN],
    [INF, 1.0, INF, 2.0],
    [-0.0, 0.0, -0.0, 0.0],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_greedy_token_is_that_of_argmax(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    many_ties = torch.randint(-9, 9, (50, 700), generator=generator).to(dtype)
    for logits in (many_ties, torch.tensor(STRANGE, dtype=dtype)):
        found = choose_tokens(logits, torch.zeros(len(logits)), Decoding(1))
        assert found.equal(logits.argmax(-1))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_probabilities_are_sorted_as_torch_sorts_them(threads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    rounded = torch.randint(0, 40, (3, 5000), generator=generator) / 39
    few = torch.tensor([[0.0, 1.0, 0.5, 1.0], [NAN, 0.5, -NAN, 0.0], [1e-45, 0.0, 1e-39, 1e-45]])
    one_nan, another = 0x7FC00000, 0x7FC00123
    nans = torch.tensor([[one_nan, 0, another, one_nan]], dtype=torch.int32).view(torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for values in (rounded, few, nans, rounded[:, ::2], torch.softmax(rounded, -1), few[:0]):
            ordered, columns = sort_descending(values)
            expected = values.sort(dim=-1, descending=True, stable=True)
            assert columns.equal(expected.indices)
            assert ordered.nan_to_num(7.0).equal(expected.values.nan_to_num(7.0))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_sampled_tokens_are_those_of_a_stable_sort(top_p: float) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randint(-30, 30, (64, 900), generator=generator) / 8
    sampling_noise = torch.rand(64, generator=generator)
    probabilities = torch.softmax(logits / 0.7, dim=-1)
    ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    mass = ordered.cumsum(-1)
    kept = (mass - ordered) < top_p
    target = sampling_noise[:, None] * (ordered * kept).sum(-1, keepdim=True)
    place = torch.minimum((mass < target).sum(-1), kept.sum(-1) - 1)
    found = choose_tokens(logits, sampling_noise, Decoding(1, 0.7, top_p))
    assert found.equal(tokens.gather(-1, place[:, None])[:, 0])


@pytest.mark.parametrize("turn", [0, 2])
def test_each_sample_of_an_example_has_noise_of_its_own(turn: int) -> None:
    decoding = Decoding(5, noise_seed=3, noise_generation=1)
    places = [(4, 1), (7, 0), (4, 0), (7, 2), (4, 2)]
    examples = [Example(index, "", "", chat=False, sample=sample) for index, sample in places]
    drawn = draw_sampling_noise(examples, decoding, turn)
    assert len(drawn.unique(dim=0)) == len(places)
    for row, (index, sample) in zip(drawn, places, strict=True):
        stream = "train" if sample == 0 else f"train sample {sample}"
        expected = noise.sampling_uniforms(3, 1, stream, [index], 5, start=5 * turn)
        assert row.tolist() == expected[0].tolist()
