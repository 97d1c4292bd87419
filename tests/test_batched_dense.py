"""Members of dense spaces that stand in the model together: what one after another would write."""

import numpy as np
import pytest
import torch

from germline.config import Full, InProcess
from germline.engines.batched_dense import AUTO_BYTES, BatchedDenseMembers, DenseMembers
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.nano import NANO_DIR
from germline.optimizers import Sgd
from germline.spaces import make_space
from germline.types import Decoding, VectorPerturbation
from tests import tiny
from tests.slow_cases import mostly_slow
from tests.tiny_engines import bits, examples, inprocess, population, same_bits, tokens

PARTS = {
    "everything": Full(),
    "norms": Full(include=("*norm*",)),
    "norms of gpt2": Full(include=("*.ln_*",)),
    "biases": Full(include=("*bias",)),
    "embeddings": Full(include=("*embed_tokens*",)),
    "a layer": Full(layers="1"),
    "weights without biases": Full(exclude=("*bias",)),
}
MEMBERS = population(6).members
GREEDY = Decoding(max_new_tokens=8)


def read(engine, rows=3):
    """Logits `[members, rows, length, vocabulary]`, all members in one batch where they stand."""
    ids = torch.arange(20, 20 + rows * 9).view(rows, 9)
    found = torch.cat(engine._read([*MEMBERS, None], ids.repeat(len(MEMBERS) + 1, 1), 0))
    return found.unflatten(0, (-1, rows))


def both(model, space):
    return [inprocess(model, space, members_per_batch=n) for n in (7, 1)]


@pytest.mark.parametrize(
    ("model", "part"),
    mostly_slow(
        [("qwen2", part) for part in PARTS if "gpt2" not in part]
        + [("gpt2", "norms of gpt2"), ("gpt2", "biases"), ("llama", "biases")]
        + [(model, "everything") for model in ("llama", "mistral", "gemma3", "gpt2")],
        quick={("qwen2", "everything"), ("qwen2", "biases"), ("gpt2", "everything")},
    ),
)
def test_members_together_have_the_logits_of_one_after_another(model, part):
    engines = both(model, PARTS[part])
    for rows in (1, 12):
        together, alone = (read(engine, rows) for engine in engines)
        assert float((together - alone).abs().max()) <= 1e-5 * float(alone.abs().max())
        assert not torch.equal(alone[0], alone[1])


@pytest.mark.parametrize("part", ["everything", "norms"])
def test_every_member_has_the_very_floats_it_has_alone(part):
    together, alone = both("qwen2", PARTS[part])
    assert isinstance(together._members, BatchedDenseMembers)
    draw, size = np.random.default_rng(0), together.weights.dimension
    members = [*MEMBERS[:3], None, *MEMBERS[3:]]
    if part == "norms":
        offsets = [draw.normal(0, 0.1, size).astype(np.float32) for _ in range(3)]
        members = [*(VectorPerturbation(0, k, one) for k, one in enumerate(offsets)), None]
    with together._members.applied(members):
        for place, member in enumerate(members):
            with alone._members.applied([member]):
                for name, stack in together._members.drawn.items():
                    assert torch.equal(stack[place], alone.serving[name])


def nano(members_per_batch):
    section = InProcess(device="cpu", dtype="float32", members_per_batch=members_per_batch)
    return InProcessEngine(load_pretrained(str(NANO_DIR)), make_space(Full()), Sgd(), section)


@pytest.mark.parametrize("model", ["qwen2 of few words", "gpt2"])
def test_members_whose_texts_are_done_leave_with_their_weights(model):
    together, alone = both(model, Full())
    sizes = []
    layer = together.model.get_submodule("model.layers.0" if "qwen" in model else "transformer.h.0")
    layer.register_forward_hook(lambda _m, args, _o: sizes.append(len(args[0])))
    decoding = Decoding(20, temperature=1.0, noise_seed=5)
    batch = examples() * 3
    members = [*MEMBERS, None]
    found = tokens(together.generate(members, batch, decoding))
    assert found == tokens(alone.generate(members, batch, decoding))
    assert ("qwen" in model) == (min(sizes[2:]) < max(sizes[2:]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_standing_together_leaves_every_bit_and_every_module_as_it_was(dtype):
    engine = inprocess("gemma3", Full(), dtype=dtype, members_per_batch=7)
    before, modules = bits(engine), [dict(m.__dict__) for m in engine.model.modules()]
    engine.generate(MEMBERS, examples(), GREEDY)
    assert same_bits(before, bits(engine))
    assert [set(m.__dict__) for m in engine.model.modules()] == [set(one) for one in modules]


def test_members_are_cut_into_groups_of_nearly_equal_size():
    engine = inprocess("qwen2", Full(), members_per_batch=4)

    def sizes(count):
        members = population(count).members
        return [len(members[group]) for group in engine._groups(members)]

    assert sizes(10) == [4, 4, 2]
    assert sizes(6) == [3, 3]


def test_auto_follows_from_the_size_of_what_is_searched():
    engine = nano("auto")
    size = sum(t.nbytes for t in engine.serving.values())
    assert isinstance(engine._members, BatchedDenseMembers)
    assert engine._members.together == AUTO_BYTES // size
    assert AUTO_BYTES == 67_108_864  # runs that were begun with it are resumed with it


def test_large_models_and_mixtures_run_one_member_after_another(monkeypatch):
    assert isinstance(inprocess("mixtral", Full())._members, DenseMembers)
    assert isinstance(inprocess("mixtral", Full(), members_per_batch=4)._members, DenseMembers)
    monkeypatch.setattr("germline.engines.batched_dense.AUTO_BYTES", 1000)
    assert isinstance(inprocess("qwen2", Full())._members, DenseMembers)


def test_the_norms_of_a_mixture_stand_together():
    section = Full(include=("*norm*",))
    together, alone = both("mixtral", section)
    assert isinstance(together._members, BatchedDenseMembers)
    assert float((read(together) - read(alone)).abs().max()) <= 1e-4


def test_a_table_that_computes_its_indices_takes_members_one_by_one(tmp_path, monkeypatch):
    model = tiny.save_tiny(tmp_path / "opt", "opt", word_embed_proj_dim=64, ffn_dim=96)
    texts = inprocess(str(model), Full()).generate(MEMBERS, examples(), GREEDY)
    assert [len(row) for row in texts] == [len(examples())] * len(MEMBERS)
