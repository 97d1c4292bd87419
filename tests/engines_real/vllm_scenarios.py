"""Scenarios with a real vLLM in this process; the observations are written as JSON.

    python -m tests.engines_real.vllm_scenarios SCENARIO FILE

The interpreter of vLLM's environment runs one scenario a process: most of the time is vLLM's start.
"""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from germline.config import load_config
from germline.engines.vllm.engine import VllmEngine
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
# Long enough for vLLM to cache blocks of them; the first blocks are common to all.
EXAMPLES = [
    Example(k, "Say what the sum is, and nothing else. " * 3 + f"What is {k} + 4?", "", chat=True)
    for k in range(6)
]
GREEDY = Decoding(max_new_tokens=12)
SAMPLED = Decoding(max_new_tokens=12, temperature=1.0, top_p=0.9)
UPDATE = Update(7, 0, 0.02, 0.02, (0.5, -0.3, 0.2))
# Members and updates above are in weight units: as fractions of the weights they change no text.
WEIGHT_UNITS = {"strategy": {"sigma_unit": "constant"}}
SMALL = {"threads": 1, "options": {"block_size": 32, "kv_cache_memory_bytes": 10**8}}


def opened(space: str, **section: Any) -> VllmEngine:
    engine = {"kind": "vllm", **SMALL, **section}
    found = make_engine(load_config({"space": space, "engine": engine, **WEIGHT_UNITS}))
    assert isinstance(found, VllmEngine)
    return found


def texts(completions: list[list[Completion]]) -> list[list[str]]:
    return [[one.text for one in row] for row in completions]


def few_slots() -> dict[str, Any]:
    """More members than slots, caches that become stale, and an adapter that is refused."""
    reference = make_engine(
        load_config({"space": "low_rank", "engine": "inprocess", **WEIGHT_UNITS})
    )
    observed: dict[str, Any] = {}
    with closing(opened("low_rank", adapters=2)) as engine:
        members = [*MEMBERS, None]
        observed["expected"] = texts(reference.generate(members, EXAMPLES, GREEDY))
        observed["found"] = texts(engine.generate(members, EXAMPLES, GREEDY))
        observed["sampled"] = [texts(engine.generate(members, EXAMPLES, SAMPLED)) for _ in range(2)]
        observed["refused"] = _refused(engine)
        observed["after refusal"] = texts(engine.generate(members, EXAMPLES, GREEDY))
        for one in (reference, engine):
            one.apply(UPDATE)
        observed["expected later"] = texts(reference.generate([None], EXAMPLES, GREEDY))
        observed["found later"] = texts(engine.generate([None], EXAMPLES, GREEDY))
        reference.apply(UPDATE)
        observed["expected at last"] = texts(reference.generate([None], EXAMPLES, GREEDY))
        observed["stale"] = _stale(engine)
        engine.refresh()
        observed["found at last"] = texts(engine.generate([None], EXAMPLES, GREEDY))
    return observed


def _refused(engine: VllmEngine) -> str:
    """Request an adapter that the worker does not know."""
    engine.llm.call("clear")
    try:
        engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
    except EngineLost as error:
        engine.refresh()
        return str(error)
    return "accepted"


def _stale(engine: VllmEngine) -> list[list[str]]:
    """Evaluate after an update without new adapter names and without emptying the prefix cache."""
    engine.generate([None], EXAMPLES, GREEDY)
    engine.weights.apply(UPDATE)
    engine.llm.call("apply_member", None)
    return texts(engine.generate([None], EXAMPLES, GREEDY))


def dense() -> dict[str, Any]:
    """Whole tensors: written in place, and restored to the same bits."""
    observed: dict[str, Any] = {}
    with closing(opened("full")) as engine:
        model = _model(engine)
        engine.generate([None], EXAMPLES, GREEDY)
        places = {name: one.data_ptr() for name, one in model.named_parameters()}
        before = {name: one.clone() for name, one in model.named_parameters()}
        engine.generate([*MEMBERS, None], EXAMPLES, GREEDY)
        after = dict(model.named_parameters())
        observed["moved"] = [
            name for name, place in places.items() if after[name].data_ptr() != place
        ]
        observed["changed"] = [
            name for name in before if not torch.equal(before[name], after[name])
        ]
        observed["fused"] = [name for name in after if "qkv_proj" in name or "gate_up" in name][:2]
        observed["packed away"] = _packed_away(engine)
    return observed


def _model(engine: VllmEngine) -> Any:
    llm: Any = engine.llm._llm
    (model,) = llm.apply_model(lambda model: model)
    return model


def _packed_away(engine: VllmEngine) -> str:
    """Move a weight to other storage than vLLM's loaders write, as packing for a CPU does."""
    model = _model(engine)
    layer = model.get_submodule("model.layers.1.mlp.down_proj")
    layer.weight.data = layer.weight.data.new_empty(0)
    try:
        engine.llm.call("load_base")
    except GermlineError as error:
        return str(error)
    return "written"


SCENARIOS = {scenario.__name__: scenario for scenario in (few_slots, dense)}

if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(SCENARIOS[sys.argv[1]]()))
