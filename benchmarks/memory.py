"""Memory of training compared with inference, on the nano model.

    python -m benchmarks.memory
    python -m benchmarks.memory --spaces low_rank lora --examples 8

Promised, and tested by tests/test_peak_memory.py: the peak of training is at most that of inference
on the same batch, plus 10 % of the weights' bytes for `low_rank` and `lora`, plus one copy of the
weights for `full` with `master_device: device` and `members_per_batch: 1` (every further member in
a batch takes another copy).

Bytes are those of all tensor storage that is allocated at once, counted exactly per operation,
without scratch memory inside operations and numpy arrays. The batch is one microbatch of training:
members x examples rows, with completions of full length. *Inference* generates them as the rows of
one plain batch. *Center* generates them as training does, where members share the common beginning
of the prompts, but with unperturbed members; this bound is stricter, because sharing saves memory.
`full` evaluates one member after another, so its batch is the rows of one member.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from germline import load_config
from germline.config import Config, InProcess
from germline.engines.inprocess import InProcessEngine
from germline.engines.pretrained import load_pretrained
from germline.nano import NANO_DIR
from germline.optimizers import make_optimizer
from germline.run.build_parts import make_decoding
from germline.spaces import make_space
from germline.spaces.base import BaseSpace
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Example

Work = Literal["inference", "center", "training"]
WORKS: tuple[Work, ...] = ("inference", "center", "training")

MEGABYTE = 1e6
PROMISED_SHARE = {"low_rank": 0.1, "lora": 0.1, "full": 1.0}
"""Share of the weights' bytes that training may need in addition to inference."""


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of allocated tensor storage, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._upper_bound = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and count its inputs and outputs."""
        result = func(*args, **(kwargs or {}))
        torch.utils._pytree.tree_map_only(torch.Tensor, self._see, (args, kwargs, result))
        if self._upper_bound > self.peak:
            # Freed storages only matter for a new peak.
            self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
            self._upper_bound = sum(size for _, size in self._alive.values())
            self.peak = max(self.peak, self._upper_bound)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        known = self._alive.get(storage._cdata)
        if known is None or known[0].expired():
            self._upper_bound += storage.nbytes() - (known[1] if known else 0)
            self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare the memory of training and inference.")
    parser.add_argument("--spaces", nargs="+", default=["low_rank", "lora", "full"])
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32, help="longest completion")
    arguments = parser.parse_args()
    print("| space | weights, MB | inference, MB | center, MB | training, MB | promised: at most |")
    print("|---|---|---|---|---|---|")
    for space in arguments.spaces:
        config = configured(space, arguments.members, arguments.examples, arguments.tokens)
        peaks = {work: peak(config, work) for work in WORKS}
        weights = peaks["inference"][1]
        promised = peaks["inference"][0] + PROMISED_SHARE[space] * weights
        figures = (weights, *(peaks[work][0] for work in WORKS), promised)
        cells = " | ".join(f"{figure / MEGABYTE:.2f}" for figure in figures)
        print(f"| `{space}` | {cells} |", flush=True)


def peak(config: Config, work: Work) -> tuple[int, int]:
    """Return the peak bytes of tensors during the work, and the bytes of the weights."""
    searched = make_space(config.space, config.seed) if work != "inference" else None
    engine = endless(config, searched)
    work_once = prepared(config, engine, work)
    with LiveTensors() as live:
        work_once()
    return live.peak, sum(one.nbytes for one in engine.serving.values())


def configured(space: str, members: int, examples: int, tokens: int) -> Config:
    """Return the settings of one generation of the nano model, with masters on its device."""
    return load_config(
        {
            "model": "nano",
            "task": {"kind": "conciseness", "max_new_tokens": tokens},
            "space": space,
            "strategy": {"population": members, "sigma": 0.005, "learning_rate": 0.01},
            "engine": {
                "kind": "inprocess",
                "device": "cpu",
                "master_device": "device",
                "members_per_batch": 1,
            },
            "microbatch": {"members": members, "examples": examples},
            "batch_size": examples,
            "generations": 2,
        }
    )


def prepared(config: Config, engine: InProcessEngine, work: Work) -> Callable[[], None]:
    """Return the work: the rows of a microbatch, and in training also the update."""
    task = make_task(config.task)
    examples = list(task.examples("train")[: config.batch_size])
    limits = make_decoding(config, task)
    strategy = make_strategy(config.strategy, run_seed=0, generations=config.generations)
    one_by_one = config.space.kind == "full"
    members = len(strategy.ask(0))
    # Run two batches: the second begins while the first one's last activation is allocated.
    in_batches = (
        ([None, None], examples) if one_by_one else ([None], distinct(engine, examples, members))
    )

    def inference() -> None:
        engine.generate(*in_batches, limits)

    def center() -> None:
        engine.generate([None, None] if one_by_one else [None] * members, examples, limits)

    def training() -> None:
        population = strategy.ask(0)
        engine.generate(population.members, examples, limits)
        utilities = np.linspace(-1, 1, len(population))
        engine.apply(strategy.tell(population, utilities))

    return {"inference": inference, "center": center, "training": training}[work]


def distinct(engine: InProcessEngine, examples: Sequence[Example], copies: int) -> list[Example]:
    """Repeat prompts with other last tokens: a prompt that is there twice is read once."""
    prompts = [engine.encoder.encode(example) for example in examples]
    return [
        replace(example, token_ids=(*prompt[:-1], copy))
        for copy in range(copies)
        for example, prompt in zip(examples, prompts, strict=True)
    ]


def endless(config: Config, space: BaseSpace | None) -> InProcessEngine:
    """Load the nano model without an end token, so that all rows stay in the batch.

    In training, finished rows leave the batch, so peaks depend on the completions.
    """
    pretrained = load_pretrained(str(NANO_DIR))
    pretrained.model.generation_config.eos_token_id = None
    pretrained.model.config.eos_token_id = None
    pretrained.tokenizer.eos_token = None
    assert isinstance(config.engine, InProcess)
    optimizer = make_optimizer(config.optimizer)
    return InProcessEngine(pretrained, space, optimizer, config.engine)


def resident_peak() -> float:
    """Return the peak resident memory of this process, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM: resident memory is measured on Linux only")


if __name__ == "__main__":
    main()
