"""The parameters of a model: what each of them is, and where its values are held.

    searched    an fp32 master besides the serving copy; in fp32 on one device they may be one
                tensor
    frozen      no fp32 copy: the serving copy itself, where it holds every stored value exactly
                (bf16 served in bf16 or fp32), else the stored tensor on the host (fp32 or fp16
                served in bf16), because digests and exports are of the stored values

Tensors are placed one after another, so that loading holds one tensor more than the final state.

The digest is a tree whose leaves are the tensors, so that frozen tensors are hashed once:

    leaf = SHA-256(name ":" shape ":" little-endian fp32 values)
    digest = SHA-256(leaves in canonical order)

The values are fp32 whatever the dtype of a tensor: bf16 and fp16 convert to fp32 exactly, chunk by
chunk, so that a digest needs no fp32 copy of a tensor.

Weights are loaded in the dtype of their files, so that no fp32 copy of a bf16 model is made.
Buffers, such as the scale of Gemma's embeddings, are computed by transformers in the dtype in which
a model is created: fp32, because rounded buffers would change the results of an engine that serves
in fp32.

Limits: files that mix dtypes, and formats other than safetensors, are loaded in fp32. Weights that
are served in their stored dtype stay mapped from their files, which processes on one machine share:
while such a file is in use, replace it by renaming another file, never by writing into it.
"""

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_parameter_registration_hook

from germline.types import GermlineError, TensorInfo, TensorKind

CHUNK = 1 << 20
"""Numbers hashed at once: the fp32 values of a chunk take 4 MB."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


FEW = 1 << 16
"""Up to so many numbers are hashed without threads: 256 KB take a fraction of a millisecond."""


def list_tensors(model: nn.Module) -> tuple[TensorInfo, ...]:
    """List a model's parameters by canonical name; tied ones once, under the first name."""
    infos = []
    non_text = _non_text_parameters(model)
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        is_text = id(parameter) not in non_text
        layer = re.search(r"\.(\d+)\.", name) if is_text else None
        infos.append(
            TensorInfo(
                name=name,
                shape=tuple(parameter.shape),
                kind=_kind(owner, name) if is_text else "non_text",
                layer=int(layer[1]) if layer else None,
                transposed=_is_conv1d(owner) and parameter.dim() == 2,
                aliases=tuple(names[id(parameter)][1:]),
            )
        )
    return tuple(infos)


def _non_text_parameters(model: nn.Module) -> set[int]:
    """Return the ids of parameters that no text passes: those of other inputs, such as images."""
    # Told by attributes, as the toy model must not wait for the import of transformers.
    if not getattr(getattr(model, "config", None), "sub_configs", None):
        return set()
    any_model = cast("Any", model)
    kinds = [(one, getattr(one, "main_input_name", "input_ids")) for one in model.modules()]
    towers = [one for one, first_input in kinds if first_input != "input_ids"]
    heads = (any_model.get_input_embeddings(), any_model.get_output_embeddings())
    text = {id(p) for one in (any_model.get_decoder(), *heads) if one for p in one.parameters()}
    outside = {id(p) for p in model.parameters()} - text
    return outside | {id(p) for tower in towers for p in tower.parameters()}


def _kind(owner: nn.Module, name: str) -> TensorKind:
    if name.endswith("bias"):
        return "bias"
    # A mixture routes single tokens to an expert, whose rows no longer tell which member they are.
    if ".experts." in name:
        return "expert"
    if _is_linear(owner) or _is_conv1d(owner):
        return "linear"
    if isinstance(owner, nn.Embedding):
        return "embedding"
    if type(owner).__name__.endswith("Router"):  # of transformers, as its linear layers above
        return "router"
    return "norm" if "norm" in type(owner).__name__.lower() else "other"


def _is_linear(owner: nn.Module) -> bool:
    """Tell a product of inputs and weight; a subclass, such as Phimoe's router, may be more."""
    if not isinstance(owner, nn.Linear) or type(owner).forward is nn.Linear.forward:
        return isinstance(owner, nn.Linear)
    inputs = torch.linspace(-1, 1, owner.in_features).to(owner.weight)[None]
    with torch.no_grad():
        try:
            output = owner(inputs)
        except Exception:  # noqa: BLE001 - a module of any library, which needs other arguments
            return False
        expected = functional.linear(inputs, owner.weight, owner.bias)
    is_alike = isinstance(output, Tensor) and output.shape == expected.shape
    return is_alike and (expected.is_meta or torch.allclose(output, expected, rtol=0.01, atol=0.01))


def _is_conv1d(owner: nn.Module) -> bool:
    """Tell GPT-2's linear layer, whose weight is `[in, out]`, without importing transformers."""
    return type(owner).__name__ == "Conv1D"


def place_tensors(
    model: nn.Module,
    searched: Collection[str],
    device: torch.device,
    dtype: torch.dtype,
    master_device: torch.device,
    *,
    separate: bool = False,
) -> dict[str, Tensor]:
    """Move a model's parameters to the device and dtype of serving; return the values by name.

    Where masters are separate, as members are written into the serving copy, no master shares its
    storage.
    """
    values = {}
    for name, parameter in model.named_parameters():
        stored = parameter.detach()
        parameter.data = stored.to(device, dtype)
        value = serving = parameter.detach()
        if name in searched:
            if dtype != torch.float32 or device != master_device:
                value = stored.to(master_device, torch.float32)
            if separate and value.data_ptr() == serving.data_ptr():
                value = value.clone()
        elif not holds_exactly(dtype, stored.dtype):
            value = stored
        values[name] = value
    return values


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name the first tensor that holds an infinity or NaN."""
    # The sums need no memory, and are finite unless an element is not or a sum overflows.
    sums = torch.stack([tensor.sum().float() for tensor in tensors.values()]).tolist()
    for (name, tensor), total in zip(tensors.items(), sums, strict=True):
        if not math.isfinite(total) and not tensor.isfinite().all():
            return name
    return None


def holds_exactly(dtype: torch.dtype, stored: torch.dtype) -> bool:
    """Tell whether a dtype represents every value of another dtype."""
    return torch.promote_types(dtype, stored) == dtype


def tensor_digests(
    tensors: Mapping[str, Tensor], names: Iterable[str] | None = None
) -> dict[str, bytes]:
    """Hash tensors by name (None: all), as many at once as torch has threads.

    At least two threads hash, because hashing releases the interpreter lock and does not use
    OpenMP's threads. Few numbers are hashed sooner than a thread starts. A mapping that reads a
    file is asked for a tensor only when it is hashed.
    """
    chosen = list(tensors if names is None else names)
    numbers = accumulate(tensors[name].numel() for name in chosen)
    if all(number <= FEW for number in numbers):
        return {name: _leaf(name, tensors[name]) for name in chosen}
    with ThreadPoolExecutor(max_workers=max(2, torch.get_num_threads())) as threads:
        leaves = threads.map(lambda name: _leaf(name, tensors[name]), chosen)
        return dict(zip(chosen, leaves, strict=True))


def root_digest(leaves: Iterable[bytes]) -> str:
    """Return the digest of tensors whose leaves are given in canonical order."""
    return hashlib.sha256(b"".join(leaves)).hexdigest()


def _leaf(name: str, tensor: Tensor) -> bytes:
    leaf = hashlib.sha256(f"{name}:{list(tensor.shape)}:".encode())
    for chunk in tensor.detach().reshape(-1).split(CHUNK):
        # Copied to the host before the conversion: half precision is half the bytes.
        leaf.update(chunk.cpu().float().numpy().astype("<f4", copy=False).data)
    return leaf.digest()


@contextmanager
def parameter_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create models with parameters in a dtype and buffers in fp32 during a `with` block.

    transformers creates a model on the meta device, and gives weights the dtype they have there.
    """

    def converted(
        _module: nn.Module, _name: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        if parameter is None or not parameter.is_meta or parameter.dtype != torch.float32:
            return None
        return nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)

    # Typed as if a hook always returned a parameter; None keeps the given one.
    handle = register_module_parameter_registration_hook(converted)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Replace the forwards of modules during a `with` block.

    Hooks would do the same, but one costs more than a small correction of a layer.
    """
    with ExitStack() as restored:
        for module, forward in forwards:
            module.forward = forward
            restored.callback(delattr, module, "forward")
        yield


def serving_dtype(name: str, stored: torch.dtype, *, on_gpu: bool) -> torch.dtype:
    """Return the dtype of `engine.dtype`: `auto` is the checkpoint's on a GPU, fp32 on a CPU."""
    if name != "auto":
        return DTYPES[name]
    is_emulated = on_gpu and stored == torch.bfloat16 and not has_bfloat16()
    if is_emulated or (on_gpu and stored not in DTYPES.values()):
        found = str(stored).removeprefix("torch.")
        raise GermlineError(
            f"engine.dtype=auto is {found}, the dtype in config.json of the model, which this GPU "
            "cannot serve, or only emulates: set engine.dtype=float16 or engine.dtype=float32"
        )
    return stored if on_gpu else torch.float32


def multiplies_bfloat16() -> bool:
    """Tell whether this processor has instructions for products in bfloat16: AVX512-BF16 or AMX.

    Without them, oneDNN converts to fp32 and back, which is slower than fp32.
    """
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in tests)


def has_bfloat16(device: torch.device | None = None) -> bool:
    """Tell whether a GPU calculates in bfloat16, as since Ampere; PyTorch emulates it on others."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(device) >= (8, 0)
