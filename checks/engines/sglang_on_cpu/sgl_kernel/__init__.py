"""Stands where sgl_kernel would: without AMX, SGLang takes its own pure torch paths.

Two things that SGLang's adapters ask of torch whatever the device, pinned memory both, are answered
without pinning: there is nothing to copy to.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from absent_package import declare_absent  # type: ignore[import-not-found]  # beside it, once installed

__version__ = "0.4.10"
UNPINNED = ("arange", "empty", "empty_like", "full", "ones", "tensor", "zeros", "zeros_like")

declare_absent(__name__)


def _without_pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*arguments: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        return make(*arguments, **named)

    return made


for _name in UNPINNED:
    setattr(torch, _name, _without_pinning(getattr(torch, _name)))
setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)  # noqa: B010
