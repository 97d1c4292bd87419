"""Decode steps of fixed shapes: what steps over the filled part of the cache would write."""

import pytest
import torch

import germline.engines.kv_cache
from germline.engines.cuda_graph import FixedShapeSteps
from germline.types import Decoding
from tests.tiny_engines import SPACES, examples, inprocess, population, tokens

MEMBERS = [*population(4).members, None]
SAMPLED = Decoding(20, temperature=1.0, noise_seed=5)
CASES = [
    ("qwen2", "rank 1"),
    ("qwen2", "full"),
    ("llama", "rank 6"),
    ("llama", "lora"),
    ("mistral", "rank 1"),
    ("gemma3", "lora"),
    ("gpt2", "full"),
]


def written(model, space, steps, device="cpu"):
    engine = inprocess(model, SPACES[space], cuda_graphs=steps == "fixed", device=device)
    return tokens(engine.generate(MEMBERS, examples() * 3, SAMPLED))


@pytest.mark.parametrize(("model", "space"), CASES)
def test_fixed_steps_write_what_plain_steps_write(model, space):
    assert written(model, space, "fixed") == written(model, space, "plain")


@pytest.mark.parametrize("space", ["rank 1", "full"])
def test_rows_may_leave_between_fixed_steps(space, monkeypatch):
    made = []
    begin = FixedShapeSteps.__init__

    def counted(self, *arguments):
        made.append(arguments)
        begin(self, *arguments)

    monkeypatch.setattr(FixedShapeSteps, "__init__", counted)
    fixed = written("qwen2 of few words", space, "fixed")
    assert len({len(mask) for _, _, mask, _, _ in made}) > 1
    assert fixed == written("qwen2 of few words", space, "plain")


def test_every_step_of_a_batch_has_the_same_shapes(monkeypatch):
    shapes = set()
    engine = inprocess("qwen2", cuda_graphs=True)
    attention = engine.model.model.layers[0].self_attn

    def watch(_module, _arguments, named):
        if named["hidden_states"].shape[1] == 1:
            shapes.add(tuple(named["attention_mask"].shape))

    attention.register_forward_pre_hook(watch, with_kwargs=True)
    engine.generate([None], examples() * 3, Decoding(12))
    assert len(shapes) == 1


def test_what_memory_held_before_does_not_matter(monkeypatch):
    before = written("qwen2", "rank 1", "fixed")
    buffer = germline.engines.kv_cache._buffer
    monkeypatch.setattr(
        germline.engines.kv_cache, "_buffer", lambda *shape: buffer(*shape).fill_(torch.nan)
    )
    assert written("qwen2", "rank 1", "fixed") == before


def test_the_setting_reaches_the_decoder():
    assert inprocess("qwen2", cuda_graphs=True)._decoder.fixed_steps
    assert not inprocess("qwen2")._decoder.fixed_steps


@pytest.mark.gpu
@pytest.mark.parametrize(("model", "space"), CASES)
def test_recorded_steps_write_what_plain_steps_write(model, space):
    assert written(model, space, "fixed", "cuda") == written(model, space, "plain", "cuda")
