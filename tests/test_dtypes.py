"""Serving dtypes that a device lacks, and stored ones that nothing serves."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from germline.engines.dtypes import check_dtype, serving_dtype
from germline.types import GermlineError
from tests.tiny_engines import inprocess

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class WithoutHalf(TorchDispatchMode):
    """A CPU that multiplies no matrices in fp16, as that of PyTorch before 2.2."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "mm" in str(func) and args[0].dtype == torch.float16:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nmore lines")
        return func(*args, **(kwargs or {}))


def test_a_dtype_that_a_device_lacks_is_told_with_those_it_has() -> None:
    with (
        WithoutHalf(),
        pytest.raises(
            GermlineError,
            match=r"^engine\.dtype=float16 is float16, which engine\.device=cpu lacks "
            r"\(\"addmm_impl_cpu_\" not implemented for 'Half'\): "
            r"set engine\.dtype=float32 or engine\.dtype=bfloat16$",
        ),
    ):
        inprocess(dtype="float16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_cpu_of_today_has_every_dtype(dtype: str) -> None:
    assert inprocess(dtype=dtype).dtype == getattr(torch, dtype)


def test_bfloat16_is_not_emulated_on_gpus_before_ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, dtype, device: ones(*shape, dtype=dtype))
    with pytest.raises(
        GermlineError,
        match=r"^engine\.dtype=auto is bfloat16 \(as the model is stored\), which "
        r"engine\.device=cuda:0 lacks \(Tesla T4 has compute capability 7\.5, bfloat16 needs "
        r"8\.0\): set engine\.dtype=float32 or engine\.dtype=float16$",
    ):
        check_dtype("auto", torch.bfloat16, GPU)
    check_dtype("float16", torch.float16, GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    check_dtype("auto", torch.bfloat16, GPU)


@pytest.mark.parametrize("stored", [torch.float64, torch.float8_e4m3fn])
def test_models_are_not_served_in_every_dtype_they_may_be_stored_in(stored: torch.dtype) -> None:
    with pytest.raises(GermlineError, match=r"^engine\.dtype=auto is float.*: set engine\.dtype"):
        serving_dtype("auto", stored, on_gpu=True)
    assert serving_dtype("auto", stored, on_gpu=False) == torch.float32
    assert serving_dtype("bfloat16", stored, on_gpu=True) == torch.bfloat16
