"""The inprocess engine on the simulated GPU: the bits of a CPU that takes the same paths.

A GPU takes other paths than a CPU: batched products instead of columns, prompts in one piece.
`as_on_gpu` lets the CPU take them, so that all that is left to differ is the device.
"""

import gc

import pytest
import torch

import germline
from germline.config import Full, load_config
from germline.engines import batched_dense, batched_lora, decode, grouped_attention
from germline.optimizers import Adam
from germline.record import RunDirectory
from germline.run import resume
from germline.testing import EngineConformance
from germline.types import Decoding, GermlineError, Update, VectorPerturbation
from tests import simulated_gpu
from tests.simulated_gpu import DEVICE, limited
from tests.slow_cases import mostly_slow
from tests.tiny_engines import (
    SPACES,
    bits,
    examples,
    folder,
    inprocess,
    population,
    same_bits,
    tokens,
)
from tests.toy_runs import SETTINGS, finish, journal, stopped_after

DECODINGS = {
    "greedy": Decoding(max_new_tokens=4),
    "sampled": Decoding(max_new_tokens=4, temperature=0.7, top_p=0.9, noise_seed=1),
    "stopped": Decoding(max_new_tokens=4, temperature=1.0, noise_seed=2, stop=("e", "a")),
}
MEMBERS = [*population(4, sigma=0.05).members, None]


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Let the CPU compute as a GPU does."""
    monkeypatch.setattr(batched_lora, "COLUMNWISE_RANK", 0)
    monkeypatch.setattr(decode, "PREFILL_TOKENS", 1 << 40)
    monkeypatch.setattr(batched_dense, "FEW_ROWS", 0)
    monkeypatch.setattr(grouped_attention, "SMALL_SCORES", 0)


def far(model="qwen2", space=None, optimizer=None, **settings):
    return inprocess(model, space, optimizer, device=simulated_gpu.NAME, **settings)


def update(generation=0):
    return Update(3, generation, 0.02, 0.5, (0.5, -1.0, 0.25))


def on_host(engine):
    return {name: tensor.cpu() for name, tensor in bits(engine).items()}


@pytest.mark.parametrize(
    ("space", "masters"),
    mostly_slow(
        [
            *((space, "device") for space in SPACES),
            ("full", "host"),
            ("rank 1", "host"),
            ("lora", "host"),
            ("subspace", "host"),
        ],
        quick={("full", "host"), ("rank 1", "device"), ("lora", "device"), ("subspace", "host")},
    ),
)
@pytest.mark.usefixtures("as_on_gpu")
def test_members_and_updates_have_the_bits_of_a_cpu_in_every_space(space, masters):
    near = inprocess("qwen2", SPACES[space], Adam())
    there = far("qwen2", SPACES[space], Adam(), master_device=masters)
    assert {tensor.device for tensor in there.serving.values()} == {DEVICE}
    searched = {there.weights.tensors[info.name].device.type for info in there.weights.searched}
    assert searched == {simulated_gpu.NAME if masters == "device" else "cpu"}
    if space in ("lora", "subspace", "singular"):
        offsets = torch.linspace(-0.1, 0.1, near.weights.dimension).numpy()
        moved = [VectorPerturbation(0, 0, offsets), None, VectorPerturbation(0, 1, -offsets)]
        written = near.generate(moved, examples(), DECODINGS["greedy"])
        assert there.generate(moved, examples(), DECODINGS["greedy"]) == written
        assert tokens(written)[0] != tokens(written)[2]
    for generation, decoding in enumerate((DECODINGS["sampled"], DECODINGS["stopped"])):
        written = near.generate(MEMBERS, examples(), decoding)
        assert there.generate(MEMBERS, examples(), decoding) == written
        read = [one.log_probabilities(MEMBERS, examples(), written) for one in (near, there)]
        assert read[0] == read[1]
        sizes = [one.apply(update(generation)) for one in (near, there)]
        assert sizes[0] == sizes[1]
        assert near.weights.digest() == there.weights.digest()
    assert same_bits(on_host(near), on_host(there))


@pytest.mark.usefixtures("as_on_gpu")
def test_long_prompts_are_read_in_pieces_that_follow_from_the_model(monkeypatch):
    near, there = inprocess("qwen2", SPACES["lora"]), far("qwen2", SPACES["lora"])
    config = there.model.config
    length = max(len(there.encoder.encode(one)) for one in examples()) + 4
    each = (3 * config.intermediate_size + 4 * config.hidden_size + 2 * length) * 4
    monkeypatch.setattr(decode, "PREFILL_BYTES", 100 * each + 1)
    monkeypatch.setattr(decode, "PREFILL_TOKENS", 100)
    read = []
    for engine in (near, there):
        engine.model.base_model.register_forward_hook(
            lambda _m, _a, named, _o: read.append(named["input_ids"].numel()), with_kwargs=True
        )
    written = near.generate(MEMBERS, examples(), DECODINGS["greedy"])
    on_cpu = list(read)
    assert there.generate(MEMBERS, examples(), DECODINGS["greedy"]) == written
    assert read == [*on_cpu, *on_cpu]
    assert sum(tokens > 30 for tokens in on_cpu) > 2
    assert max(on_cpu) <= 100


@pytest.mark.parametrize(
    ("space", "dtype"),
    mostly_slow(
        [("rank 1", "bfloat16"), ("full", "float16"), ("lora", "bfloat16")],
        quick={("rank 1", "bfloat16")},
    ),
)
@pytest.mark.usefixtures("as_on_gpu")
def test_half_precision_has_the_bits_of_a_cpu(space, dtype):
    near, there = (
        inprocess("qwen2", SPACES[space], device=device, dtype=dtype, members_per_batch=1)
        for device in ("cpu", simulated_gpu.NAME)
    )
    for _ in range(2):
        written = near.generate(MEMBERS, examples(), DECODINGS["greedy"])
        assert there.generate(MEMBERS, examples(), DECODINGS["greedy"]) == written
        for one in (near, there):
            one.apply(update())
    assert near.weights.digest() == there.weights.digest()


class TestLowRank(EngineConformance):
    def make(self):
        return far("qwen2", SPACES["rank 1"], Adam())


@pytest.mark.parametrize(
    "overrides",
    [
        (
            "space=full",
            "strategy.optimizer=adam",
            "strategy.sigma=0.05",
            "engine.master_device=host",
        ),
        ("space={kind: lora, rank: 2}", "strategy.sigma=0.1", "engine.dtype=bfloat16"),
    ],
)
@pytest.mark.usefixtures("as_on_gpu")
def test_a_run_has_the_journal_of_a_cpu_and_is_resumed_to_it(overrides, tmp_path):
    def config(device):
        engine = {"kind": "inprocess", "device": device, "threads": 1}
        values = {**SETTINGS, "model": str(folder("qwen2")), "engine": engine, "generations": 2}
        return load_config(values, [*overrides, "strategy.population=2", "held_out.examples=1"])

    near = finish(germline.train(config("cpu"), tmp_path / "near"))
    there = stopped_after(germline.train(config(simulated_gpu.NAME), tmp_path / "there"), 1)
    assert RunDirectory.open(there).config.engine == config(simulated_gpu.NAME).engine
    finish(resume(there))
    assert journal(there) == journal(near)
    assert len(journal(near).splitlines()) == 2


def test_a_batch_that_does_not_fit_names_the_setting_and_leaves_no_trace():
    engine = far("qwen2", SPACES["rank 1"])
    digest, before = engine.weights.digest(), on_host(engine)
    with limited(300_000), pytest.raises(GermlineError, match="out of memory on simgpu") as caught:
        engine.generate(MEMBERS, examples(), Decoding(max_new_tokens=100))
    assert "microbatch.rows" in str(caught.value)
    del caught
    assert engine.weights.digest() == digest
    assert same_bits(before, on_host(engine))
    assert engine.generate([None], examples(), DECODINGS["greedy"])


@pytest.mark.parametrize("masters", ["device", "host"])
def test_memory_is_what_stays_and_generating_frees_the_rest(masters):
    gc.collect()
    before = simulated_gpu.held()
    engine = far(
        "qwen2",
        Full(include=("*.mlp.*",)),
        master_device=masters,
        members_per_batch=1,
        dtype="bfloat16",
    )
    served = sum(tensor.nbytes for tensor in engine.serving.values())
    searched = sum(4 * engine.serving[info.name].numel() for info in engine.weights.searched)
    buffers = sum(one.untyped_storage().nbytes() for one in engine.model.buffers())
    kept = simulated_gpu.held() - before
    assert kept == served + buffers + (searched if masters == "device" else 0)
    engine.generate(MEMBERS, examples(), DECODINGS["greedy"])
    assert simulated_gpu.held() - before == kept
