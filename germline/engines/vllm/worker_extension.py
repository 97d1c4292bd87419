"""What runs inside vLLM's workers: the one module of germline that knows vLLM's internals.

vLLM imports it before the model is loaded (`worker_extension_cls`) and gives its workers one more
method, `germline`, through which everything here is asked for. Each worker has fp32 masters: those
of the engine where it runs in the engine's own process, or a replica that it loads itself and moves
by the same updates. From them it makes whatever members need, so only names travel.

- An adapter is drawn when vLLM first asks for it: its `lora_path` names a member, not a folder.
- Whole tensors are handed to vLLM's own weight loaders by their canonical Hugging Face names; these
  cut, fuse and pad them as they did when the model was loaded, so the noise of a member does not
  depend on the layout. They write into the storage that is there, which CUDA graphs point to.
- Nothing is ever subtracted: what is written is worked out from the masters.

Tested with vLLM 0.32. Newer ones are used as long as they have every `part` asked for here, and
refused with their version otherwise.

Known limit: on a CPU vLLM packs linear weights away, where they cannot be written any more;
importing this module switches that off.
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import vllm
from safetensors.torch import load
from torch import Tensor

from germline.engines.master_weights import Masters
from germline.engines.served.masters_spec import masters_from_spec
from germline.engines.served.serialization import read_members, read_update
from germline.engines.vllm import version_check
from germline.engines.vllm.server import ADAPTER_PATH
from germline.protocols import MemberAdapter
from germline.types import EngineLost, GermlineError, Perturbation

try:
    from vllm import _custom_ops
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper
except ImportError as error:
    raise version_check.missing_part_error(str(error.name or error), vllm.__version__) from error

TOGETHER = 16
"""Members whose adapters are drawn at once: those of a pair share what is drawn."""

_custom_ops._supports_onednn = False


class GermlineWorkerExtension:
    """What vLLM's workers inherit beside their own class."""

    def germline(self, run: str, verb: str, *given: Any) -> dict[str, Any]:
        """Answer what an engine asks for: one of `VERBS`; what is wrong is an answer as well.

        Args:
            run: names who asks: the last one who began is answered.
            verb: what is asked for.
            given: what it takes; texts, unless the engine is in this process.
        """
        try:
            if not hasattr(self, "_germline"):
                self._germline = WorkerMembers(self)
            self._germline.listen_to(run, begins=verb in BEGINNINGS)
            return VERBS[verb](self._germline, *given) or {}
        except EngineLost as error:
            return {"lost": str(error)}
        except GermlineError as error:
            return {"error": str(error)}


class WorkerMembers:
    """The masters of one worker, and what it makes of them.

    Raises:
        GermlineError: this vLLM is too old, or is made differently.
    """

    def __init__(self, worker: Any) -> None:
        version_check.check_version(vllm.__version__)
        self._runner = part(worker, "model_runner")
        self._model = part(self._runner, "get_model")()
        self._masters: Masters | None = None
        self._members: dict[str, Perturbation | None] = {}
        self._drawn: dict[str, MemberAdapter] = {}
        self._received: dict[str, Tensor] = {}
        self._updates = 0
        self._settled = False
        self._run = ""
        self._lora = getattr(self._runner, "lora_manager", None)
        if self._lora is not None:
            self._from_folder = part(self._lora, "_load_adapter")
            self._lora._load_adapter = self._load_adapter

    def listen_to(self, run: str, *, begins: bool) -> None:
        """Refuse a run that another one has taken this worker from.

        Raises:
            EngineLost: another one has, or this worker was started anew.
        """
        if begins:
            self._run = run
        elif run != self._run:
            found = "is used by another run now" if self._run else "was started anew"
            raise EngineLost(f"vLLM {found}: give each run a server of its own, and resume it")

    def listen(self) -> None:
        """Do nothing: whoever is answered has this worker still."""

    def describe(self) -> dict[str, Any]:
        """Say what is served, and how."""
        model = part(self._runner, "model_config")
        lora = self._lora and part(self._lora, "lora_config")
        return {
            "vllm": vllm.__version__,
            "model": model.model,
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_loras": lora.max_loras if lora else 0,
            "max_cpu_loras": lora.max_cpu_loras or lora.max_loras if lora else 0,
            "max_lora_rank": lora.max_lora_rank if lora else 0,
        }

    def share(self, masters: Masters) -> None:
        """Take the masters of an engine in this process, which moves them itself."""
        self._masters = masters

    def build(self, recipe: str) -> dict[str, str]:
        """Load masters of this worker's own; return the digest of the model they begin at."""
        self._masters = None  # not two of them at once
        self._updates = 0
        model = part(self._runner, "model_config").model
        self._masters = masters_from_spec(recipe, model)
        return {"base": self._masters.base.digest(), "model": model}

    def digest(self) -> dict[str, str]:
        """Return the digest of this worker's masters."""
        return {"masters": self._own.digest()}

    def apply(self, number: str, update: str) -> dict[str, str]:
        """Move this worker's own masters, once, however often this update is sent."""
        if int(number) > self._updates:
            self._own.apply(read_update(update))
            self._updates = int(number)
        return self.digest()

    def receive(self, name: str, tensor: str) -> None:
        """Take one tensor of a state in, as base64 of safetensors."""
        self._received[name] = load(base64.b64decode(tensor))[name]

    def restore(self) -> dict[str, str]:
        """Bring this worker's own masters to the state that was received."""
        state, self._received = self._received, {}
        if state:  # none: an answer was lost, and this is asked again
            self._own.load_state(state)
        return self.digest()

    def register(self, members: str) -> None:
        """Take in members by name; adapters of these names may be asked for from now on."""
        self._members.update(read_members(members))

    def clear(self) -> None:
        """Forget all members: the weights they stood beside have changed."""
        self._members.clear()
        self._drawn.clear()

    @torch.no_grad()
    def apply_member(self, member: str) -> None:
        """Write a member's tensors into the weights that are served; of none: the center's."""
        ((_, who),) = read_members(member).items()
        self._write(self._own.written_tensors(who))

    @torch.no_grad()
    def load_base(self) -> None:
        """Write the base model's weights, whatever stands there; at first, make sure that one can.

        Raises:
            GermlineError: vLLM's loaders do not give back what was loaded, or write it elsewhere.
        """
        if self._settled:
            self._write(self._own.base.weights.items())
            return
        named = dict(self._model.named_parameters())
        before = _looks(named)
        found = self._write(self._own.base.weights.items())
        # Layers with room for adapters keep their own weight one level deeper.
        self._check_unwritten(
            [name for name in named if not {name, name.replace(".base_layer.", ".")} & found]
        )
        for weight in named.values():
            weight.zero_()  # so that what is not written shows
        self._write(self._own.base.weights.items())
        after = _looks(named)
        self._check_unwritten([name for name in named if before[name] != after[name]])
        self._settled = True

    def _write(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Let vLLM's loaders write tensors by their canonical names; return what they wrote."""
        try:
            return set(part(self._model, "load_weights")(weights))
        except (AssertionError, AttributeError, LookupError, RuntimeError, ValueError) as error:
            raise _unwritten(f"does not take weights ({type(error).__name__}: {error})") from error

    def _check_unwritten(self, names: Sequence[str]) -> None:
        if names:
            raise _unwritten(
                f"keeps {names[0]} ({len(names)} such weights) as it was, or elsewhere"
            )

    @property
    def _own(self) -> Masters:
        if self._masters is None:
            raise GermlineError("vLLM has no masters yet: the run must begin first")
        return self._masters

    def _load_adapter(self, request: Any) -> LoRAModel:
        """Draw what vLLM would read from a folder."""
        if not request.lora_path.startswith(ADAPTER_PATH):
            return self._from_folder(request)
        adapter = self._draw(request.lora_path.removeprefix(ADAPTER_PATH))
        settings = part(self._lora, "lora_config")
        manager = part(self._lora, "_adapter_manager")
        helper = PEFTHelper.from_dict(adapter.config())
        helper.validate_legal(settings)
        names = getattr(manager.model, "hf_to_vllm_mapper", None)
        lora = LoRAModel.from_lora_tensors(
            request.lora_int_id,
            dict(adapter.tensors),
            helper,
            device="cpu",
            dtype=settings.lora_dtype,
            model_vocab_size=part(self._lora, "vocab_size"),
            weights_mapper=names.get_rename_mapper() if names is not None else None,
        )
        _check_unserved(lora, manager)
        return lora

    def _draw(self, name: str) -> MemberAdapter:
        """Return a member's adapter, drawn together with others that will be asked for next."""
        if name not in self._members:
            raise EngineLost(f"no member is called {name}: vLLM was started anew, or forgot it")
        if name not in self._drawn:
            names = list(self._members)
            start = names.index(name)
            together = names[start : start + TOGETHER]
            members = [self._members[one] for one in together]
            self._drawn.update(zip(together, self._own.member_adapters(members), strict=True))
        return self._drawn.pop(name)


VERBS: Mapping[str, Callable[..., Any]] = {
    verb.__name__: verb
    for verb in (
        WorkerMembers.describe,
        WorkerMembers.listen,
        WorkerMembers.share,
        WorkerMembers.build,
        WorkerMembers.digest,
        WorkerMembers.apply,
        WorkerMembers.receive,
        WorkerMembers.restore,
        WorkerMembers.register,
        WorkerMembers.clear,
        WorkerMembers.apply_member,
        WorkerMembers.load_base,
    )
}
"""What may be asked for, which may be through HTTP: nothing else can be."""

BEGINNINGS = ("describe", "share", "build")
"""With these a run takes the worker; the others are answered to that run alone."""


def part(owner: Any, name: str) -> Any:
    """Return a part of this vLLM."""
    return version_check.import_part(owner, name, vllm.__version__)


def _unwritten(found: str) -> GermlineError:
    return GermlineError(
        f"model: vLLM {vllm.__version__}, asked to write what it loaded, {found}: its weights are "
        "packed or quantized, or another model's. Start it anew without, or use "
        "engine.kind=inprocess"
    )


def _check_unserved(lora: LoRAModel, manager: Any) -> None:
    """Refuse what vLLM would leave out without a word, so that members were the base model."""
    served = set(part(manager, "modules"))
    for names in part(manager, "packed_modules").values():
        served.update(names)
    if unserved := sorted(set(lora.loras) - served):
        raise GermlineError(
            f"vLLM {vllm.__version__} cannot put an adapter beside {unserved[0]} ({len(unserved)} "
            "such layers): leave them out with space.exclude, or use space.kind=full"
        )


def _looks(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Return where weights lie, and a sum over their bits and places."""
    return {name: (weight.data_ptr(), _checksum(weight)) for name, weight in weights.items()}


def _checksum(weight: Tensor) -> int:
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32}[weight.element_size()]
    total = 0
    for number, part_of_it in enumerate(weight.contiguous().view(whole).flatten().split(1 << 22)):
        bits = part_of_it.long()
        # Weighed by place, so that parts that changed places are not taken for each other.
        places = torch.arange(len(bits), device=bits.device) % 8191 + number + 1
        total += int((bits * places).sum())
    return total
