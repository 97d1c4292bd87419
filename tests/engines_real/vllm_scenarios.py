"""Scenes with a real vLLM in this process; what was seen is written down as JSON.

    python -m tests.engines_real.vllm_scenes SCENE FILE

Run by the interpreter of vLLM's environment, one scene a process: starting vLLM is what takes long.
"""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from germline.config import load_config
from germline.engines.vllm.engine import VllmEngine
from germline.engines.vllm.in_process import InProcessTransport
from germline.run.build_parts import make_engine
from germline.types import (
    Completion,
    Decoding,
    EngineLost,
    Example,
    GermlineError,
    SeedPerturbation,
    Update,
)

MEMBERS = [
    SeedPerturbation(7, 0, direction, sign, 0.02) for direction in range(3) for sign in (1, -1)
]
# Long enough for vLLM to keep blocks of them; the first ones are the same for all.
EXAMPLES = [
    Example(k, "Say what the sum is, and nothing else. " * 3 + f"What is {k} + 4?", "", chat=True)
    for k in range(6)
]
GREEDY = Decoding(max_new_tokens=12)
SAMPLED = Decoding(max_new_tokens=12, temperature=1.0, top_p=0.9)
UPDATE = Update(7, 0, 0.02, 0.02, (0.5, -0.3, 0.2))
# Members and updates above are in weight units: in shares of the weights they change no text.
NUMBERS = {"strategy": {"sigma_unit": "constant"}}
SMALL = {"kv_cache_gb": 0.1, "threads": 1, "options": {"block_size": 32}}


def opened(space: str, **section: Any) -> VllmEngine:
    engine = {"kind": "vllm", **SMALL, **section}
    found = make_engine(load_config({"space": space, "engine": engine, **NUMBERS}))
    assert isinstance(found, VllmEngine)
    return found


def texts(played: list[list[Completion]]) -> list[list[str]]:
    return [[one.text for one in row] for row in played]


def transport_of(engine: VllmEngine) -> InProcessTransport:
    assert isinstance(engine.transport, InProcessTransport)
    return engine.transport


def few_slots() -> dict[str, Any]:
    """More members than places, caches that go stale, and an adapter that is refused."""
    reference = make_engine(load_config({"space": "low_rank", "engine": "inprocess", **NUMBERS}))
    seen: dict[str, Any] = {}
    with closing(opened("low_rank", adapters=2)) as engine:
        everyone = [*MEMBERS, None]
        seen["expected"] = texts(reference.generate(everyone, EXAMPLES, GREEDY))
        seen["found"] = texts(engine.generate(everyone, EXAMPLES, GREEDY))
        seen["sampled"] = [texts(engine.generate(everyone, EXAMPLES, SAMPLED)) for _ in range(2)]
        seen["refused"] = _refused(engine)
        seen["after refusal"] = texts(engine.generate(everyone, EXAMPLES, GREEDY))
        for one in (reference, engine):
            one.apply(UPDATE)
        seen["expected later"] = texts(reference.generate([None], EXAMPLES, GREEDY))
        seen["found later"] = texts(engine.generate([None], EXAMPLES, GREEDY))
        reference.apply(UPDATE)
        seen["expected at last"] = texts(reference.generate([None], EXAMPLES, GREEDY))
        seen["stale"] = _stale(engine)
        engine.refresh()
        seen["found at last"] = texts(engine.generate([None], EXAMPLES, GREEDY))
    return seen


def _refused(engine: VllmEngine) -> str:
    """Ask for an adapter that the worker does not know."""
    transport_of(engine).call("clear")
    try:
        engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
    except EngineLost as error:
        engine.refresh()
        return str(error)
    return "played"


def _stale(engine: VllmEngine) -> list[list[str]]:
    """Break what keeps the cache of prefixes from other weights, and play after an update."""
    transport = transport_of(engine)
    engine.generate([None], EXAMPLES, GREEDY)
    engine.weights.apply(UPDATE)
    transport.call(
        "apply_member", '{"who": null}'
    )  # and neither are names changed nor is the cache emptied
    return texts(engine.generate([None], EXAMPLES, GREEDY))


def dense() -> dict[str, Any]:
    """Whole tensors: written in place, and back to the bit."""
    seen: dict[str, Any] = {}
    with closing(opened("full")) as engine:
        model = _model(engine)
        places = {name: one.data_ptr() for name, one in model.named_parameters()}
        before = {name: one.clone() for name, one in model.named_parameters()}
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
        after = dict(model.named_parameters())
        seen["moved"] = [name for name, place in places.items() if after[name].data_ptr() != place]
        seen["traces"] = [name for name in before if not torch.equal(before[name], after[name])]
        seen["fused"] = [name for name in after if "qkv_proj" in name or "gate_up" in name][:2]
        seen["packed away"] = _packed_away(engine)
    return seen


def _model(engine: VllmEngine) -> Any:
    llm: Any = transport_of(engine)._llm
    (model,) = llm.apply_model(lambda model: model)
    return model


def _packed_away(engine: VllmEngine) -> str:
    """Put a weight where vLLM's loaders do not write it, as packing for a CPU does."""
    model, transport = _model(engine), transport_of(engine)
    layer = model.get_submodule("model.layers.1.mlp.down_proj")
    layer.weight.data = layer.weight.data.new_empty(0)
    llm: Any = transport._llm
    llm.collective_rpc(lambda worker: setattr(worker._germline, "_writes_verified", False))
    try:
        transport.call("load_base")
    except GermlineError as error:
        return str(error)
    return "written"


def two_workers() -> dict[str, Any]:
    """Tensor parallel: every worker has masters of its own, and cuts what a member writes."""
    seen: dict[str, Any] = {}
    for space in ("full", "low_rank"):
        reference: Any = make_engine(
            load_config({"space": space, "engine": "inprocess", **NUMBERS})
        )
        with closing(opened(space, tensor_parallel=2)) as engine:
            for one in (reference, engine):
                one.apply(UPDATE)
            everyone = [*MEMBERS[:2], None]
            written = reference.generate(everyone, EXAMPLES, GREEDY)
            expected, found = (
                one.log_probabilities(everyone, EXAMPLES, written) for one in (reference, engine)
            )
            pairs = [
                pair
                for rows in zip(expected, found, strict=True)
                for texts in zip(*rows, strict=True)
                for pair in zip(*texts, strict=True)
            ]
            seen[space] = {
                "error": max(abs(a - b) for a, b in pairs),
                "tokens": len(pairs),
                "digests": [one.weights.digest() for one in (reference, engine)],
            }
    return seen


SCENES = {scene.__name__: scene for scene in (few_slots, dense, two_workers)}

if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(SCENES[sys.argv[1]]()))
