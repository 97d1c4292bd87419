"""An estimated gradient becomes a step of theta: sgd and adam.

All steps are ascents, fp32 and in place on the masters. The journal holds coefficients and not
weights, so a replayed step must give the same bits on another machine and thread count. Hence:

- Only additions, multiplications, divisions and square roots, one tensor operation each, correctly
  rounded, hence the same everywhere. torch's fused forms (addcmul, addcdiv, lerp, alpha=, foreach)
  are left out: whether they contract a product and a sum into one rounding differs by processor.
- Square roots are taken in fp64 and then rounded: torch's fp32 root on a CPU is off by one unit in
  17 % of results (measured, torch 2.13). The exact root of an fp32 number is at least 4 units of
  fp64 away from where rounding to fp32 turns, so any fp64 root worth the name gives the same fp32.
- No reductions, so nothing depends on how work is split among threads.
- Never a tensor divided by a number: CUDA multiplies by the reciprocal instead. Numbers are worked
  out in Python floats and rounded to fp32 once.
- `out=` always, over flat chunks: beside masters, gradient and moments a step needs at most 16 MB.
"""

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch

_CHUNK = 2**20


@runtime_checkable
class Optimizer(Protocol):
    """Moves masters along gradients; one object per run, with state per tensor.

    Attributes:
        bytes_per_number: size of the state per searched number.
    """

    bytes_per_number: ClassVar[int]

    def step(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
    ) -> None:
        """Move `master` uphill, in place.

        Args:
            name: canonical name of the tensor.
            master: fp32, contiguous.
            gradient: estimated gradient, of the same shape, dtype and device; left as it is.
            learning_rate: positive moves towards higher fitness.
            step_index: 0 for the first step of the run, then one more for each.
        """

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state, sorted by key; not copies."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the state by copies of what `state_dict` returned."""


class Sgd:
    """Plain ascent: theta <- theta + learning_rate * g. Has no state."""

    bytes_per_number: ClassVar[int] = 0

    def __init__(self) -> None:
        self._scratch = _Scratch(torch.float32)

    def step(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
    ) -> None:
        """Move `master` uphill, in place; see `Optimizer.step`."""
        _check(name, master, gradient)
        rate = _fp32(learning_rate)
        for theta, g in _chunks(master, gradient):
            (change,) = self._scratch.like(theta)
            torch.mul(g, rate, out=change)
            torch.add(theta, change, out=theta)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return nothing: sgd remembers nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Accept the empty state.

        Raises:
            ValueError: there is state, so it was saved by another optimizer.
        """
        if state:
            raise ValueError(
                f"optimizer=sgd has no state but was given {sorted(state)[0]!r}; "
                "resume with the optimizer the run was started with"
            )


class Adam:
    """Adam (Kingma and Ba, 2015, algorithm 1) as ascent, with t = step_index + 1.

        m <- beta1 m + (1 - beta1) g             v <- beta2 v + (1 - beta2) g^2
        theta <- theta + learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)

    State keys are `<tensor>.m` and `<tensor>.v`, fp32.
    """

    bytes_per_number: ClassVar[int] = 8

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._scratch = _Scratch(torch.float32, torch.float32, torch.float64)

    def step(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
    ) -> None:
        """Move `master` uphill, in place; see `Optimizer.step`."""
        _check(name, master, gradient)
        t = step_index + 1
        keep_m, add_m = _fp32(self._beta1), _fp32(1 - self._beta1)
        keep_v, add_v = _fp32(self._beta2), _fp32(1 - self._beta2)
        rate = _fp32(learning_rate / (1 - _power(self._beta1, t)))
        root = _fp32(1 / math.sqrt(1 - _power(self._beta2, t)))
        epsilon = _fp32(self._epsilon)
        for theta, g, m, v in _chunks(master, gradient, *self._moments_of(name, master)):
            change, denominator, wide = self._scratch.like(theta)
            torch.mul(m, keep_m, out=m)
            torch.mul(g, add_m, out=change)
            torch.add(m, change, out=m)
            torch.mul(v, keep_v, out=v)
            torch.mul(g, g, out=change)
            torch.mul(change, add_v, out=change)
            torch.add(v, change, out=v)
            wide.copy_(v)
            torch.sqrt(wide, out=wide)
            denominator.copy_(wide)
            torch.mul(denominator, root, out=denominator)
            torch.add(denominator, epsilon, out=denominator)
            torch.div(m, denominator, out=change)
            torch.mul(change, rate, out=change)
            torch.add(theta, change, out=theta)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the moments, sorted by key; not copies."""
        state = {}
        for name, (m, v) in self._moments.items():
            state[f"{name}.m"], state[f"{name}.v"] = m, v
        return dict(sorted(state.items()))

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the moments by copies of those given.

        Raises:
            ValueError: a key is no moment, a partner is missing, or a tensor is not fp32.
        """
        moments = {}
        for key in sorted(state):
            name, _, moment = key.rpartition(".")
            pair = (state.get(f"{name}.m"), state.get(f"{name}.v"))
            if moment not in ("m", "v") or pair[0] is None or pair[1] is None:
                raise ValueError(
                    f"optimizer state {key!r} is not one of a pair <tensor>.m, <tensor>.v; "
                    "the snapshot is damaged or from another optimizer"
                )
            if state[key].dtype != torch.float32:
                raise ValueError(
                    f"optimizer state {key!r} is {state[key].dtype}, not torch.float32; moments "
                    "are saved as they are, never cast"
                )
            moments[name] = (pair[0].clone(), pair[1].clone())
        self._moments = moments

    def _moments_of(self, name: str, master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the moments of a tensor: 0 at its first step, moved to its device after a load."""
        if name not in self._moments:
            self._moments[name] = (torch.zeros_like(master), torch.zeros_like(master))
        m, v = self._moments[name]
        if m.shape != master.shape or v.shape != master.shape:
            raise ValueError(
                f"moments of {name!r} have shape {tuple(m.shape)} but the tensor has "
                f"{tuple(master.shape)}; the snapshot belongs to another model"
            )
        if m.device != master.device or v.device != master.device:
            m, v = m.to(master.device), v.to(master.device)
            self._moments[name] = (m, v)
        return m, v


OPTIMIZERS: dict[str, type[Sgd] | type[Adam]] = {"sgd": Sgd, "adam": Adam}
"""The optimizers by name."""


class _Scratch:
    """Buffers for temporaries, allocated once per device and lent for one chunk at a time."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        self._dtypes = dtypes
        self._buffers: dict[torch.device, tuple[torch.Tensor, ...]] = {}

    def like(self, chunk: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Lend buffers of the chunk's length and device; their content is whatever was left."""
        if chunk.device not in self._buffers:
            self._buffers[chunk.device] = tuple(
                torch.empty(_CHUNK, dtype=dtype, device=chunk.device) for dtype in self._dtypes
            )
        return tuple(buffer[: chunk.numel()] for buffer in self._buffers[chunk.device])


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Cut same-shape contiguous tensors into the same flat views."""
    flat = [tensor.view(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), _CHUNK):
        yield tuple(tensor[start : start + _CHUNK] for tensor in flat)


def _check(name: str, master: torch.Tensor, gradient: torch.Tensor) -> None:
    """Refuse tensors a step would silently cast, broadcast or copy."""
    for role, tensor in (("master", master), ("gradient", gradient)):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(
                f"{role} of {name!r} is {tensor.dtype}, contiguous={tensor.is_contiguous()}; "
                "steps need contiguous torch.float32"
            )
    if master.shape != gradient.shape or master.device != gradient.device:
        raise ValueError(
            f"gradient of {name!r} is {tuple(gradient.shape)} on {gradient.device} but the master "
            f"is {tuple(master.shape)} on {master.device}; they must agree"
        )


def _fp32(number: float) -> float:
    """Round to fp32 here, once, rather than wherever a kernel would."""
    return float(np.float32(number))


def _power(base: float, exponent: int) -> float:
    """Raise to a whole power by multiplication only: `**` asks libm, which differs by platform."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
