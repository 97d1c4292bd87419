"""Ways to evaluate a population of adapters, timed in turn in a process for benchmarks/engines.py.

    python -m benchmarks.engine_variants GROUP MODEL OUTPUT [--repeats N] [--cuda]

MODEL is a folder of a model without an end token, so that all variants do the same work. The
measurements are written to OUTPUT as JSON. Every group contains the inprocess engine, with which
the other variants in its process are compared.

The engines of this project get new members each time, as in training: the time includes drawing and
loading their adapters. Adapters of PEFT and of vLLM's own call are loaded before, unless the name
of the variant says that they are new.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from germline.config import load_config
from germline.engines.pretrained import load_pretrained
from germline.engines.prompt_batch import encode_prompt
from germline.protocols import Closable
from germline.run.build_parts import make_engine
from germline.strategies import make_strategy
from germline.types import Decoding, Example

MEMBERS, PROMPTS, NEW_TOKENS = 16, 16, 32
TOKENS = MEMBERS * PROMPTS * NEW_TOKENS
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
EXAMPLES = [Example(k, f"What is {k} + {3 * k}?", "", chat=True) for k in range(PROMPTS)]

Variant = Callable[[int], int]
"""Called with the index of the repeat; evaluates once and returns the number of new tokens."""


def main() -> None:
    """Time the variants of a group."""
    parser = argparse.ArgumentParser(description="Ways to evaluate a population, in one process.")
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--cuda", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if arguments.cuda else "cpu"
    with ExitStack() as opened:
        variants = {
            "inprocess": opened.enter_context(
                ours(arguments.model, device, {"kind": "inprocess", "device": device})
            )
        }
        variants |= opened.enter_context(GROUPS[arguments.group](arguments.model, device))
        seconds = timed(variants, arguments.repeats, CLOCKS[arguments.clock])
    arguments.output.write_text(json.dumps(seconds))


def timed(
    variants: Mapping[str, Variant], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Time all variants in turn, several times; return median seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats + 1):  # the first is not counted
        for name, variant in variants.items():
            began = clock()
            written = variant(repeat)
            seconds[name].append(clock() - began)
            if written != TOKENS:
                raise RuntimeError(f"{name} wrote {written} tokens, not {TOKENS}")
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


@contextmanager
def ours(model: Path, device: str, engine: Mapping[str, Any]) -> Iterator[Variant]:
    """Evaluate the members of a generation with an engine of this project."""
    config = load_config(
        {
            "model": str(model),
            "engine": {"dtype": DTYPES[device], **engine},
            "space": {"kind": "low_rank", "rank": 1},
            "strategy": {"population": MEMBERS, "sigma": 0.001},
        }
    )
    strategy = make_strategy(config.strategy, run_seed=0, generations=1000)
    made = make_engine(config)

    def evaluate(repeat: int) -> int:
        members = strategy.ask(repeat).members
        rows = made.generate(members, EXAMPLES, Decoding(NEW_TOKENS))
        return sum(len(one.tokens) for row in rows for one in row)

    try:
        yield evaluate
    finally:
        if isinstance(made, Closable):
            made.close()


@contextmanager
def hugging_face(model: Path, device: str) -> Iterator[dict[str, Variant]]:
    """Generate with Hugging Face: without adapters, and with PEFT one by one and mixed."""
    from peft import LoraConfig, get_peft_model

    dtype = getattr(torch, DTYPES[device])
    plain, adapted = (load_pretrained(str(model)).model.to(device, dtype) for _ in range(2))
    section = LoraConfig(r=1, lora_alpha=1, target_modules=LAYERS, init_lora_weights=False)
    names = [f"m{k}" for k in range(MEMBERS)]
    mixed: Any = get_peft_model(adapted, section, adapter_name=names[0])
    for name in names[1:]:
        mixed.add_adapter(name, section)
    mixed.eval()
    few, many = batch(model, 1).to(device), batch(model, MEMBERS).to(device)
    of_rows = [name for name in names for _ in range(PROMPTS)]

    def written(made: Any, rows: torch.Tensor, **more: Any) -> int:
        asked = {"input_ids": rows, "attention_mask": (rows != 0).long(), "do_sample": False}
        answer = made.generate(**asked, max_new_tokens=NEW_TOKENS, pad_token_id=0, **more)
        return int(answer[:, rows.shape[1] :].numel())

    def one_after_another(_repeat: int) -> int:
        total = 0
        for name in names:
            mixed.set_adapter(name)
            total += written(mixed, few)
        return total

    with torch.inference_mode():
        yield {
            "plain HF batch, no adapters": lambda _: written(plain, many),
            "PEFT, set_adapter one after another": one_after_another,
            "PEFT, mixed batch (adapter_names)": lambda _: written(
                mixed, many, adapter_names=of_rows
            ),
        }


@contextmanager
def vllm(model: Path, device: str) -> Iterator[dict[str, Variant]]:
    """Generate with this project's vLLM engine, and with vLLM alone and adapters from files."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    on_cpu = device == "cpu"
    section = {"kind": "vllm", "adapters": MEMBERS + 1}
    section |= {"kv_cache_gb": 0.3, "threads": 1} if on_cpu else {"gpu_memory_utilization": 0.3}
    room = {"kv_cache_memory_bytes": 300_000_000} if on_cpu else {"gpu_memory_utilization": 0.3}
    way = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    prompts = [{"prompt_token_ids": ids} for ids in encoded(model)]
    with (
        tempfile.TemporaryDirectory() as folder,
        ours(model, device, section) as population,
    ):
        paths = adapters_on_disk(model, Path(folder))
        llm: Any = LLM(
            model=str(model),
            dtype=DTYPES[device],
            enforce_eager=on_cpu,
            enable_lora=True,
            max_loras=MEMBERS,
            max_cpu_loras=MEMBERS,
            max_lora_rank=1,
            **room,
        )

        def call(requests: Sequence[Any]) -> int:
            rows = [(prompt, request) for request in requests for prompt in prompts]
            asked, adapters = zip(*rows, strict=True)
            found = llm.generate(list(asked), way, lora_request=list(adapters), use_tqdm=False)
            return sum(len(one.outputs[0].token_ids) for one in found)

        def requests(first: int) -> list[Any]:
            return [
                LoRARequest(f"m{first + k}", first + k, str(path)) for k, path in enumerate(paths)
            ]

        yield {
            "vLLM engine, population": population,
            "vLLM's own call, adapters loaded": lambda _: call(requests(1)),
            "vLLM's own call, one adapter after another": lambda _: sum(
                call([one]) for one in requests(1)
            ),
            "vLLM's own call, adapters new": lambda repeat: call(
                requests(1 + MEMBERS * (repeat + 1))
            ),
        }


@contextmanager
def sglang(model: Path, device: str) -> Iterator[dict[str, Variant]]:
    """Generate with this project's SGLang engine, which starts a server."""
    section = {
        "kind": "sglang",
        "launch": True,
        "python": os.environ["GERMLINE_SGLANG_PYTHON"],
        "device": device,
        "adapters": MEMBERS,
    }
    section |= {"threads": 1} if device == "cpu" else {}
    with ours(model, device, section) as population:
        yield {"SGLang engine, population": population}


GROUPS = {"hugging face": hugging_face, "vllm": vllm, "sglang": sglang}


def encoded(model: Path) -> list[list[int]]:
    """Return the prompts as token ids."""
    tokenizer = load_pretrained(str(model)).tokenizer
    return [encode_prompt(tokenizer, example) for example in EXAMPLES]


def batch(model: Path, times: int) -> torch.Tensor:
    """Return the prompts repeated `times` times, padded on the left with token 0."""
    ids = encoded(model) * times
    length = max(map(len, ids))
    return torch.tensor([[0] * (length - len(one)) + one for one in ids])


def adapters_on_disk(model: Path, folder: Path) -> list[Path]:
    """Write a PEFT adapter for each member, of the same shape as those of this project."""
    from safetensors.torch import save_file

    from germline.engines.model_tensors import list_tensors

    generator = torch.Generator().manual_seed(0)
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": LAYERS}
    layers = [
        info for info in list_tensors(load_pretrained(str(model)).model) if info.kind == "linear"
    ]
    paths = [folder / f"m{k}" for k in range(MEMBERS)]
    for path in paths:
        tensors = {}
        for info in layers:
            for name, shape in zip(
                info.adapter_names,
                ((1, info.out_in_features[1]), (info.out_in_features[0], 1)),
                strict=True,
            ):
                noise = torch.empty(shape).normal_(0, 0.01, generator=generator)
                tensors[f"base_model.model.{name}"] = noise
        path.mkdir()
        save_file(tensors, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps(config))
    return paths


if __name__ == "__main__":
    main()
