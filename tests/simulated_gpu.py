"""A second device for machines without a GPU: `simgpu`, torch's PrivateUse1 backend in Python.

It computes every operation with the CPU's kernels, on tensors whose device is `simgpu:0`. A tensor
made on the wrong device fails here as it fails on a GPU.

- An operation that is given tensors of both devices is refused, as CUDA refuses it. Like CUDA, it
  takes numbers in CPU tensors without dimensions, and CPU indices, which are copied first.
- `limited(size)` limits the memory.
- Attention and layer norms are one operation each, as on a GPU: those of the CPU.

How it works: DLPack passes CPU memory to torch as memory of kDLExtDev, which is PrivateUse1, and
torch calls back when the memory is freed. A fallback for all operations replaces the tensors of
`simgpu` by CPU tensors of the same memory, calls the operation, and wraps new results. The CPU's
kernels for views, which only read sizes and strides, make views.

Limits: one device; no streams, graphs, pinned memory, autocast, random numbers or backward; no
dtypes that only CUDA computes with (`histc` of integers, which experts of a mixture need).
"""

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "simgpu"

READS_INDICES = frozenset(("aten::index", "aten::index_put_", "aten::_index_put_impl_"))
"""Operations that CUDA lets take indices on the host; it copies them to the device first."""

_DLPACK_CODES = {  # DLDataTypeCode: int 0, unsigned 1, float 2, bfloat 4, bool 6
    torch.int64: 0,
    torch.int32: 0,
    torch.uint8: 1,
    torch.float16: 2,
    torch.float32: 2,
    torch.float64: 2,
    torch.bfloat16: 4,
    torch.bool: 6,
}
_DLPACK_DEVICE = 12  # kDLExtDev


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DLType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManaged(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Memory:
    """The storages of the device by address, each with the CPU storage of the same memory."""

    def __init__(self) -> None:
        self.held = 0
        self.limit: int | None = None
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], object]] = {}

    def wrap(self, tensor: Tensor) -> Tensor:
        """Turn a new CPU tensor into one of the device, without copying it."""
        if not tensor.numel():
            return _as_strided(self.wrap(tensor.new_zeros(1)), tensor.size(), tensor.stride(), 0)
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if tensor.storage_offset() or address in self._storages:
            return self.wrap(torch.empty_like(tensor).copy_(tensor))
        if self.limit is not None and self.held + size > self.limit:
            raise torch.OutOfMemoryError(
                f"{NAME} out of memory: {self.held} of {self.limit} bytes are held, and {size} "
                "more were asked for"
            )
        made, described = _export(tensor)
        # Not DLPack's own callback: ctypes cannot run one while an exception is on its way.
        freed = weakref.ref(made.untyped_storage(), lambda _: self._free(address, size))
        self._storages[address], self._alive[address] = storage, (freed, described)
        self.held += size
        return made

    def unwrap(self, tensor: Tensor) -> Tensor:
        """Return a CPU tensor of the same memory; CPU tensors as they are."""
        if tensor.device.type != NAME:
            return tensor
        storage = self._storages[tensor.untyped_storage().data_ptr()]
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(storage, *place)

    def _free(self, address: int, size: int) -> None:
        del self._storages[address], self._alive[address]
        self.held -= size


def _export(tensor: Tensor) -> tuple[Tensor, object]:
    """Let torch take CPU memory for the device's; return what must live as long, too."""
    dims = tensor.dim()
    shape = (ctypes.c_int64 * dims)(*tensor.size())
    strides = (ctypes.c_int64 * dims)(*tensor.stride())
    dtype = _DLType(_DLPACK_CODES[tensor.dtype], 8 * tensor.element_size(), 1)
    place = _DLDevice(_DLPACK_DEVICE, 0)
    described = _DLTensor(tensor.data_ptr(), place, dims, dtype, shape, strides, 0)
    managed = _DLManaged(described, None, None)
    capsule = _capsule(ctypes.addressof(managed), b"dltensor", None)
    return torch._C._from_dlpack(capsule), (managed, shape, strides)


_memory = _Memory()


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Let the device hold so many bytes more than it holds now, during a `with` block."""
    _memory.limit = _memory.held + size
    try:
        yield
    finally:
        _memory.limit = None


def held() -> int:
    """Return the bytes of all tensors on the device."""
    return _memory.held


@dataclass(frozen=True)
class _Plan:
    """What the schema of an operation says.

    Attributes:
        name: without overload.
        is_view: whether it returns a view of its first tensor.
        wants_tensors: places of arguments that are tensors.
        written: for each result, the place or name of the argument that it is; None: it is new.
        out: names of arguments that are written only.
    """

    name: str
    is_view: bool
    wants_tensors: tuple[int, ...]
    written: tuple[int | str | None, ...]
    out: frozenset[str]


@cache
def _plan(operation: torch._ops.OpOverload) -> _Plan:
    schema = operation._schema
    places: dict[str, int | str] = {}
    out = set()
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            (name,) = argument.alias_info.before_set
            places[name] = argument.name if argument.kwarg_only else place
            if argument.kwarg_only:
                out.add(argument.name)
    aliases = [result.alias_info for result in schema.returns]
    written = [
        places[next(iter(alias.before_set))] if alias is not None and alias.is_write else None
        for alias in aliases
    ]
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    tensors = [k for k, one in enumerate(schema.arguments) if str(one.type) == "Tensor"]
    return _Plan(schema.name, is_view, tuple(tensors), tuple(written), frozenset(out))


def _run(operation: torch._ops.OpOverload, *inputs: Any, **named: Any) -> Any:
    """Run an operation of which a tensor, or the device asked for, is this one."""
    plan = _plan(operation)
    if plan.is_view:
        return operation.redispatch(_CPU_KEYS, *inputs, **named)
    if "device" in named:
        named["device"] = torch.device("cpu")
    tensors = [*_tensors(inputs), *_tensors(named.values())]
    _check_devices(plan, tensors)
    on_host = [_each(one, _memory.unwrap) for one in inputs]
    for place in plan.wants_tensors:
        if place < len(inputs) and not isinstance(inputs[place], Tensor):
            on_host[place] = _number(inputs[place], tensors)
    named_on_host = {name: _each(one, _memory.unwrap) for name, one in named.items()}
    for name in plan.out:
        if not named[name].numel():  # the operation makes room
            named_on_host[name] = named_on_host[name].new_empty(0)
    result = operation(*on_host, **named_on_host)
    several = isinstance(result, tuple)
    results = list(result) if several else [result]
    for place, where in enumerate(plan.written):
        if where is None:
            results[place] = _each(results[place], _memory.wrap)
        else:
            given = inputs[where] if isinstance(where, int) else named[where]
            results[place] = _given_back(given, results[place])
    return tuple(results) if several else results[0]


def _number(value: Any, tensors: Sequence[Tensor]) -> Tensor:
    """Make a number the tensor that torch had made of it, which promotes no other's dtype."""
    wide = isinstance(value, float) and any(one.dtype == torch.float64 for one in tensors)
    return torch.tensor(value, dtype=torch.float64 if wide else None)


def _given_back(given: Tensor, result: Tensor) -> Tensor:
    """Return the tensor that was written, which had no room where its shape is another."""
    if result.shape != given.shape:
        if given.numel():
            raise NotImplementedError(f"{NAME}: an operation resizes {tuple(given.shape)}")
        new = _memory.wrap(result)
        _set.redispatch(_CPU_KEYS, given, new.untyped_storage(), 0, new.size(), new.stride())
    return given


def _copy(source: Tensor, target: Tensor, _non_blocking: bool = False) -> Tensor:
    """Copy between tensors of which at least one is on the device."""
    _memory.unwrap(target).copy_(_memory.unwrap(source))
    return target


def _check_devices(plan: _Plan, tensors: Sequence[Tensor]) -> None:
    """Refuse what CUDA refuses."""
    strangers = [one for one in tensors if one.device.type != NAME and one.dim()]
    if not strangers or len(strangers) == len(tensors):
        return
    if plan.name not in READS_INDICES or tensors[0].device.type != NAME:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{NAME}:0 and {strangers[0].device}, in {plan.name}"
        )


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_each(one, change) for one in value]
    return value


def _set_data(parameter: nn.Parameter, value: Tensor) -> None:
    """Let a parameter move to this device by `.data`, as it may move to a GPU."""
    if value.device.type == parameter.device.type:
        _DATA.__set__(parameter, value)
    else:
        moved = nn.Parameter(value, requires_grad=parameter.requires_grad)
        torch.utils.swap_tensors(parameter, moved)


_DATA: Any = vars(torch._C.TensorBase)["data"]
_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_as_strided = torch.ops.aten.as_strided.default
_set = torch.ops.aten.set_.source_Storage_storage_offset

_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
_everything = torch.library.Library("_", "IMPL")
_everything.fallback(_run, "PrivateUse1")
_some = torch.library.Library("aten", "IMPL")
_some.impl("_copy_from", _copy, "PrivateUse1")
for _operation in ("scaled_dot_product_attention", "native_layer_norm"):
    # torch would take them apart, into other operations than the CPU's kernels.
    _whole = partial(_run, getattr(torch.ops.aten, _operation).default)
    _some.impl(_operation, _whole, "PrivateUse1")
nn.Parameter.data = property(_DATA.__get__, _set_data)  # type: ignore[assignment]
