"""What the inprocess engine copies between host and GPU, and what it waits for, counted."""

import pytest
import torch

from germline import tensor_noise
from germline.config import Full, LowRank
from germline.engines.kv_cache import BufferedCache
from germline.optimizers import Adam
from germline.tensor_noise import cpu_noise
from germline.types import Decoding, Update
from tests import simulated_gpu
from tests.simulated_gpu import DEVICE, Counts, counted
from tests.tiny_engines import SPACES, examples, inprocess, population

MEMBERS = [*population(4, sigma=0.05).members, None]
ROWS = len(MEMBERS) * len(examples())
DECODINGS = {"greedy": {}, "sampled": {"temperature": 0.7, "top_p": 0.9, "noise_seed": 1}}


class Kernels:
    """Noise as the Triton kernels give it: made on the device, with a copy of what addresses it."""

    @staticmethod
    def normals(*asked):
        torch.zeros(1, device=DEVICE).copy_(torch.zeros(1))
        return simulated_gpu.made_there(cpu_noise.normals(*asked))

    @staticmethod
    def concatenated_noise(*asked):
        torch.zeros(1, device=DEVICE).copy_(torch.zeros(1))
        return simulated_gpu.made_there(cpu_noise.concatenated_noise(*asked))

    @staticmethod
    def weighted_sum(*asked):
        torch.zeros(2, device=DEVICE).copy_(torch.zeros(2))
        return simulated_gpu.made_there(cpu_noise.weighted_sum(*asked))


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(
        tensor_noise,
        "_implementation",
        lambda device, _: cpu_noise if device.type == "cpu" else Kernels,
    )


def far(model, space, *optimizer, **settings):
    engine = inprocess(
        model, SPACES.get(space, space), *optimizer, device=simulated_gpu.NAME, **settings
    )
    # No token ends a text, so that all texts have the same length.
    object.__setattr__(engine._decoder, "end_ids", frozenset())
    return engine


def of_cell(engine, new_tokens, **decoding) -> Counts:
    with counted() as counts:
        engine.generate(MEMBERS, examples(), Decoding(new_tokens, **decoding))
    return counts


CASES = [
    *(("qwen2", space, "plain") for space in ("full", "rank 1", "rank 6", "lora", "subspace")),
    *(("qwen2", space, "fixed") for space in ("full", "rank 1")),
    ("mistral", "rank 1", "plain"),
    ("gemma3", "lora", "plain"),
    ("gpt2", "singular", "plain"),
]
GREEDY = {("qwen2", "rank 1", "plain"), ("qwen2", "full", "fixed")}
"""Cases whose greedy tokens are a quick test; how tokens are chosen knows no model or space."""


@pytest.mark.parametrize(
    ("model", "space", "steps", "decoding"),
    [
        pytest.param(
            *(*case, decoding),
            marks=pytest.mark.slow if decoding == "greedy" and case not in GREEDY else (),
        )
        for case in CASES
        for decoding in DECODINGS
    ],
)
@pytest.mark.usefixtures("kernels")
def test_a_decode_step_copies_its_tokens_to_the_host_and_nothing_else(
    model, space, steps, decoding
):
    engine = far(model, space, cuda_graphs=steps == "fixed")
    of_cell(engine, 2)  # tables that are made once
    shorter, longer = (of_cell(engine, tokens, **DECODINGS[decoding]) for tokens in (3, 5))
    assert longer.waits - shorter.waits == 2
    assert longer.to_host - shorter.to_host == 2
    assert longer.bytes_to_host - shorter.bytes_to_host == 2 * ROWS * 8
    assert longer.to_device == shorter.to_device


@pytest.mark.parametrize("space", ["full", "rank 1", "lora", "subspace"])
@pytest.mark.usefixtures("kernels")
def test_rows_that_leave_cost_one_copy_of_their_numbers(space, monkeypatch):
    engine = far("qwen2", space)
    object.__setattr__(engine._decoder, "end_ids", frozenset(range(0, 320, 6)))
    takes, take = [], BufferedCache.take

    def counted_take(*asked):
        takes.append(asked)
        take(*asked)

    monkeypatch.setattr(BufferedCache, "take", counted_take)

    def of(new_tokens):
        takes.clear()
        with counted() as counts:
            engine.generate(MEMBERS, examples() * 3, Decoding(new_tokens, 1.5, noise_seed=1))
        return counts, len(takes)

    of(1)
    (short, of_prefix), (long, in_all) = of(1), of(16)
    assert in_all > of_prefix
    assert long.to_device - short.to_device == in_all - of_prefix
    assert long.to_host - short.to_host <= 15


@pytest.mark.parametrize("space", ["rank 1", "rank 6", "lora", "lora of rank 6"])
@pytest.mark.usefixtures("kernels")
def test_the_noise_of_members_in_one_batch_is_not_copied_from_the_host(space):
    engine = far("qwen2", space)
    of_cell(engine, 1)
    counts = of_cell(engine, 1)
    linear = [info for info in engine.weights.base.tensors if info.kind == "linear"]
    directions = len(MEMBERS) // 2
    assert counts.to_device <= 12
    # What is left are numbers of tokens and places, masks, uniforms.
    assert counts.bytes_to_device < 0.5 * 4 * directions * sum(
        sum(one.out_in_features) for one in linear
    )


@pytest.mark.usefixtures("kernels")
def test_masters_on_the_host_are_copied_once_for_members_that_stand_together():
    engine = far("qwen2", "full", master_device="host")
    numbers = engine.weights.dimension
    of_cell(engine, 1)
    copied = of_cell(engine, 1).bytes_to_device
    assert 4 * numbers <= copied < 4 * numbers + 50_000


@pytest.mark.usefixtures("kernels")
def test_a_dense_member_is_written_from_masters_on_the_device_without_a_copy():
    engine = far("qwen2", "full", members_per_batch=1, dtype="bfloat16")
    of_cell(engine, 1)
    counts = of_cell(engine, 1)
    tensors = len(engine.weights.searched)
    per_cell = 9  # of every member: it is a cell of its own
    assert counts.to_device <= len(MEMBERS) * (tensors + per_cell)
    assert counts.bytes_to_device < engine.weights.dimension


@pytest.mark.parametrize("space", ["full", "rank 1", "lora"])
@pytest.mark.usefixtures("kernels")
def test_an_update_waits_for_a_few_numbers_and_not_for_every_tensor(space):
    engine = far("qwen2", space, Adam())
    tensors = len(engine.weights.searched)
    with counted() as counts:
        engine.apply(Update(3, 0, 0.02, 0.5, (0.5, -1.0, 0.25)))
    assert counts.to_host == 3  # samples before and after the step, and whether it is finite
    assert counts.to_device <= 3 * tensors  # addresses of noise, coefficients


def test_blocks_of_a_low_rank_gradient_are_large_on_a_gpu():
    # Every block of a gradient costs two launches per direction and column.
    engine = far("qwen2", LowRank(rank=2))
    info = max(engine.weights.searched, key=lambda one: one.shape[0] * one.shape[1])
    update = Update(3, 0, 0.02, 0.5, (0.5, -1.0, 0.25))
    with counted() as counts:
        engine.weights.space.gradient(update, info, DEVICE)
    assert counts.operations["aten::add_"] + counts.operations["aten::add"] == 3 * 2


@pytest.mark.parametrize("space", ["rank 1", "full"])
@pytest.mark.usefixtures("kernels")
def test_log_probabilities_are_copied_at_once(space):
    engine = far("qwen2", space)
    texts = engine.generate(MEMBERS, examples(), Decoding(4))
    with counted() as counts:
        engine.log_probabilities(MEMBERS, examples(), texts)
    assert counts.to_host == 1
    assert counts.bytes_to_host == 4 * sum(len(one.tokens) for row in texts for one in row)


def test_a_digest_copies_half_precision_as_it_is():
    engine = far("qwen2", Full(include=("*.norm.weight",)), dtype="float16")
    frozen = dict(engine.weights.tensors)
    with counted() as counts:
        engine.weights.digest()
    there = [one for one in frozen.values() if one.device == DEVICE]
    assert counts.bytes_to_host == sum(one.nbytes for one in there)
    assert counts.operations == {}


@pytest.mark.parametrize("model", ["qwen2", "gemma3", "gpt2"])
def test_the_center_needs_no_batched_product(model):
    # The head of a prefill is one product of matrices: as a batched one it is read once per row.
    engine = far(model, None)
    with counted() as counts:
        engine.generate([None], examples(), Decoding(3))
    assert "aten::bmm" not in counts.operations
