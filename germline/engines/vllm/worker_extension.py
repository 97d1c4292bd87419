"""What runs inside vLLM's workers: the one module of germline that knows vLLM's internals.

vLLM imports it before the model is loaded (`worker_extension_cls`) and gives its workers one more
method, `germline`, through which the engine calls everything here. The worker is in the engine's
process and computes members from the engine's fp32 masters, so requests only name members.

- An adapter is drawn when vLLM first loads it: its `lora_path` names a member, not a folder.
- Whole tensors are given to vLLM's own weight loaders under their canonical Hugging Face names. The
  loaders shard, fuse and pad them as they did when the model was loaded, so the noise of a member
  does not depend on the layout. They write into the existing storage, which CUDA graphs point to.
- Nothing is ever subtracted: every written value is computed from the masters.

Tested with vLLM 0.32. An error names the version where another one lacks a part that is used here.

Known limit: on a CPU vLLM packs linear weights for oneDNN, which makes them impossible to write;
importing this module disables that.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import vllm
from torch import Tensor
from vllm import _custom_ops
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from germline.engines.master_weights import Masters
from germline.engines.vllm.engine import ADAPTER_PATH
from germline.spaces.base import MemberAdapter
from germline.types import EngineLost, GermlineError, Perturbation

ADAPTERS_PER_DRAW = 16
"""Members whose adapters are drawn at once: the members of a pair share their noise."""

_custom_ops._supports_onednn = False


class GermlineWorkerExtension:
    """A base class that vLLM adds to its worker class."""

    def germline(self, verb: str, *arguments: Any) -> str | None:
        """Call a method of `WorkerMembers`; return the message of an error."""
        try:
            if not hasattr(self, "_germline"):
                self._germline = WorkerMembers(self)
            getattr(self._germline, verb)(*arguments)
        except GermlineError as error:
            return str(error)
        except AttributeError as error:
            return (
                f"vLLM {vllm.__version__} lacks a part that engine.kind=vllm uses ({error}): "
                "install vLLM 0.32"
            )
        return None


class WorkerMembers:
    """The members of the worker, computed from the masters of the engine."""

    def __init__(self, worker: Any) -> None:
        self._runner = worker.model_runner
        self._model = self._runner.get_model()
        self._masters: Masters  # from `share`
        self._members: dict[str, Perturbation | None] = {}
        self._drawn: dict[str, MemberAdapter] = {}
        self._lora: Any = getattr(self._runner, "lora_manager", None)
        if self._lora is not None:
            self._load_from_folder = self._lora._load_adapter
            self._lora._load_adapter = self._load_adapter

    def share(self, masters: Masters) -> None:
        """Use the masters of an engine, which applies the updates."""
        self._masters = masters

    def register(self, members: Mapping[str, Perturbation | None]) -> None:
        """Register members by name; vLLM can load adapters of these names from now on."""
        self._members.update(members)

    def clear(self) -> None:
        """Forget all members: the masters have changed."""
        self._members.clear()
        self._drawn.clear()

    @torch.no_grad()
    def apply_member(self, member: Perturbation | None) -> None:
        """Write a member's tensors into the served weights; None is the center."""
        self._write(self._masters.written_tensors(member))

    @torch.no_grad()
    def load_base(self) -> None:
        """Write the base model's weights, and verify that vLLM's loaders restore all of them."""
        named = dict(self._model.named_parameters())
        before = _checksums(named)
        for weight in named.values():
            weight.zero_()  # a weight that is not written stays zero, and its checksum differs
        self._write(self._masters.base.weights.items())
        after = _checksums(named)
        if unwritten := [name for name in named if before[name] != after[name]]:
            raise _unwritable(
                f"{unwritten[0]} ({len(unwritten)} such weights) is not changed in its storage"
            )

    def _write(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write tensors by canonical names with vLLM's loaders."""
        try:
            self._model.load_weights(weights)
        except (AssertionError, AttributeError, LookupError, RuntimeError, ValueError) as error:
            raise _unwritable(
                f"its weight loaders fail ({type(error).__name__}: {error})"
            ) from error

    def _load_adapter(self, request: Any) -> LoRAModel:
        """Draw the adapter that vLLM would read from a folder."""
        if not request.lora_path.startswith(ADAPTER_PATH):
            return self._load_from_folder(request)
        adapter = self._draw(request.lora_path.removeprefix(ADAPTER_PATH))
        settings = self._lora.lora_config
        manager = self._lora._adapter_manager
        helper = PEFTHelper.from_dict(adapter.config())
        helper.validate_legal(settings)
        names = getattr(manager.model, "hf_to_vllm_mapper", None)
        lora = LoRAModel.from_lora_tensors(
            request.lora_int_id,
            dict(adapter.tensors),
            helper,
            device="cpu",
            dtype=settings.lora_dtype,
            model_vocab_size=self._lora.vocab_size,
            weights_mapper=names.get_rename_mapper() if names is not None else None,
        )
        _check_unserved(lora, manager)
        return lora

    def _draw(self, name: str) -> MemberAdapter:
        """Return a member's adapter; those of the next members are drawn with it."""
        if name not in self._members:
            raise EngineLost(f"no member has the name {name}")
        if name not in self._drawn:
            names = list(self._members)
            start = names.index(name)
            names = names[start : start + ADAPTERS_PER_DRAW]
            adapters = self._masters.member_adapters([self._members[one] for one in names])
            self._drawn.update(zip(names, adapters, strict=True))
        return self._drawn.pop(name)


def _unwritable(cause: str) -> GermlineError:
    return GermlineError(
        f"model: vLLM {vllm.__version__} cannot write weights into this model ({cause}): they are "
        "packed or quantized, or those of another model. Restart vLLM without quantization, or use "
        "engine.kind=inprocess"
    )


def _check_unserved(lora: LoRAModel, manager: Any) -> None:
    """Refuse layers that vLLM would skip silently, so that members equaled the base model."""
    served = set(manager.modules)
    for names in manager.packed_modules.values():
        served.update(names)
    if unserved := sorted(set(lora.loras) - served):
        raise GermlineError(
            f"vLLM {vllm.__version__} does not support adapters of {unserved[0]} ({len(unserved)} "
            "such layers): leave them out with space.exclude, or use space.kind=full"
        )


def _checksums(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Return the address and a checksum of each weight."""
    return {name: (weight.data_ptr(), _checksum(weight)) for name, weight in weights.items()}


def _checksum(weight: Tensor) -> int:
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32}[weight.element_size()]
    total = 0
    for number, chunk in enumerate(weight.contiguous().view(integer).flatten().split(1 << 22)):
        # Weighted by position, so that swapped parts change the sum.
        positions = torch.arange(len(chunk), device=chunk.device) % 8191 + number + 1
        total += int((chunk.long() * positions).sum())
    return total
