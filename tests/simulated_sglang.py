"""A simulated SGLang 0.5.23 server with the routes that tests of a client need."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from germline.config import Config, load_config
from germline.engines.pretrained import load_pretrained
from germline.engines.served_engine import ServedEngine
from germline.engines.sglang.server import reference_log_probabilities
from germline.run.build_parts import make_engine
from germline.types import Decoding, Example, SeedPerturbation
from tests.scripted_server import Scripted
from tests.tiny_engines import folder

MEMBERS = [
    SeedPerturbation(7, 0, direction, sign, 0.02) for direction in (0, 1) for sign in (1, -1)
]
EXAMPLES = [Example(k, f"What is {k} + 4?", "", chat=True) for k in range(3)]
DECODING = Decoding(max_new_tokens=4)


@cache
def scores() -> tuple[float, ...]:
    """Return the tiny model's log-probabilities of the fixed text."""
    return tuple(reference_log_probabilities(load_pretrained(str(folder("qwen2"))).model))


@dataclass
class SimulatedSglang:
    """An SGLang server without weights: it has a weight version and the names of adapters."""

    scores: tuple[float, ...] = field(default_factory=scores)
    version: str = "default"
    started: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    instead: dict[str, Any] = field(default_factory=dict)
    most_loaded: int = 0

    def reply(self, path: str, body: Any) -> tuple[int, Any]:
        """Respond as SGLang 0.5.23 does."""
        if path in self.instead:
            return self.instead[path]
        return getattr(self, path.strip("/"))(body)

    def server_info(self, _body: Any) -> tuple[int, Any]:
        return 200, {
            "tp_size": 1,
            "dp_size": 1,
            "dtype": "float32",
            "max_loaded_loras": None,
            "enable_deterministic_inference": False,
            **self.started,
        }

    def model_info(self, _body: Any) -> tuple[int, Any]:
        found = {"model_path": "a/model"}
        return 200, {**found, "weight_version": self.version, **self.model}

    def generate(self, body: Any) -> tuple[int, Any]:
        names = body.get("lora_path") or [None] * len(body["input_ids"])
        if unknown := [name for name in names if name and name not in self.loaded]:
            return 400, {"error": {"message": f"adapter that has never been loaded: {unknown[0]}"}}
        return 200, [self.row(ids, body) for ids in body["input_ids"]]

    def row(self, ids: list[int], body: Any) -> dict[str, Any]:
        end = [body["sampling_params"][0].get("stop_token_ids", [0])[0]]
        meta: dict[str, Any] = {"weight_version": self.version}
        if body.get("return_logprob"):
            scored = zip(self.scores, ids[1:], strict=True)
            meta["input_token_logprobs"] = [
                [None, ids[0], None],
                *([s, t, None] for s, t in scored),
            ]
        return {"output_ids": end, "meta_info": meta}

    def load_lora_adapter_from_tensors(self, body: Any) -> tuple[int, Any]:
        self.loaded.append(body["lora_name"])
        self.most_loaded = max(self.most_loaded, len(self.loaded))
        return 200, {"success": True}

    def unload_lora_adapter(self, body: Any) -> tuple[int, Any]:
        self.loaded.remove(body["lora_name"])
        return 200, {"success": True}

    def weights_checker(self, _body: Any) -> tuple[int, Any]:
        return 200, {"success": True, "ranks": [{"checksums": {"all": self.version}}]}

    def begin_weight_update(self, _body: Any) -> tuple[int, Any]:
        return 200, {"success": True}

    def update_weights_from_tensor(self, body: Any) -> tuple[int, Any]:
        self.version = body["weight_version"]
        return 200, {"success": True}

    def end_weight_update(self, _body: Any) -> tuple[int, Any]:
        return 200, {"success": True}

    def update_weights_from_disk(self, body: Any) -> tuple[int, Any]:
        self.version = body["weight_version"]
        return 200, {"success": True}


def config(script: Scripted, space: Any = "low_rank", **section: Any) -> Config:
    engine = {"kind": "sglang", "base_url": script.url, "retry_timeout_s": 0.0, **section}
    return load_config({"model": str(folder("qwen2")), "space": space, "engine": engine})


def served(script: Scripted, space: Any = "low_rank", **section: Any) -> ServedEngine:
    """Make an engine; the caller closes it."""
    engine = make_engine(config(script, space, **section))
    assert isinstance(engine, ServedEngine)
    return engine


@contextmanager
def opened(script: Scripted, space: Any = "low_rank", **section: Any) -> Iterator[Any]:
    """Make an engine; the script records only requests after its start."""
    with closing(served(script, space, **section)) as engine:
        script.asked.clear()
        yield engine
