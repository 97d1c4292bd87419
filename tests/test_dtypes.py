"""Serving dtypes, and stored ones that nothing serves."""

import pytest
import torch

from germline.engines.dtypes import serving_dtype
from germline.types import GermlineError
from tests.tiny_engines import inprocess


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_cpu_of_today_has_every_dtype(dtype: str) -> None:
    assert inprocess(dtype=dtype).dtype == getattr(torch, dtype)


def test_bfloat16_is_not_emulated_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("germline.engines.dtypes.has_bfloat16", lambda: False)
    with pytest.raises(GermlineError, match=r"^engine\.dtype=auto .* engine\.dtype=float16"):
        serving_dtype("auto", torch.bfloat16, on_gpu=True)
    assert serving_dtype("bfloat16", torch.bfloat16, on_gpu=True) == torch.bfloat16
    assert serving_dtype("auto", torch.float16, on_gpu=True) == torch.float16


@pytest.mark.parametrize("stored", [torch.float64, torch.float8_e4m3fn])
def test_models_are_not_served_in_every_dtype_they_may_be_stored_in(stored: torch.dtype) -> None:
    with pytest.raises(GermlineError, match=r"^engine\.dtype=auto is float.*: set engine\.dtype"):
        serving_dtype("auto", stored, on_gpu=True)
    assert serving_dtype("auto", stored, on_gpu=False) == torch.float32
    assert serving_dtype("bfloat16", stored, on_gpu=True) == torch.bfloat16
