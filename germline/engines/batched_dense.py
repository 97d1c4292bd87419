"""Members with weights of their own, several at once: every searched tensor stands as a stack.

A member of a dense space has weight matrices of its own, so members cannot share a product as
low-rank ones do. One small model at a time, though, keeps a processor waiting for Python most of
the time. So n members stand in the model at once: a searched tensor is a stack `[n, *shape]`, rows
are ordered by member, a linear layer is one batched product, and what is not searched stays shared.

The model's own parameters are not touched. A module with searched tensors answers through a
stand-in; where its own forward can do the work, it is run with the stack laid over its attribute.

Memory: n times the bytes of the searched tensors in the serving dtype, and n times the fp32 noise
of the largest of them.

Limits: linear layers, embeddings and norms of the last dimension. Experts of a mixture see rows
that were routed to them, so their members stand one after another (`DenseMembers`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from germline.engines.master_weights import Masters
from germline.protocols import DenseSpace
from germline.types import GermlineError, Perturbation, SeedPerturbation, TensorInfo

AUTO_BYTES = 64 * 2**20
"""Most bytes of a stack of `engine.members_per_batch=auto`: more leaves every cache, gains nothing.

Frozen, as it decides what stands together when a run is resumed.
"""


FEW_ROWS = 8
"""On a CPU, weight times rows takes half the time of rows times weight, up to so many rows each."""


class BatchedDenseMembers:
    """So many members at once, each with its own copy of the searched tensors.

    Attributes:
        together: how many members stand at once, at most.
    """

    def __init__(
        self, model: nn.Module, like: Tensor, masters: Masters, space: DenseSpace, together: int
    ) -> None:
        self.masters = masters
        self.space = space
        self.together = together
        self._like = like
        self._stand_ins = _stand_ins(model, masters)
        self._standing: dict[str, Tensor] = {}

    @contextmanager
    def applied(self, members: Sequence[Perturbation | None]) -> Iterator[None]:
        """Let these members stand in the model during a `with` block; None is the center."""
        if all(member is None for member in members):
            yield
            return
        entered: list[_StandIn] = []
        try:
            self._standing = self._draw(members)
            for one in self._stand_ins:
                one.enter(self._standing)
                entered.append(one)
            yield
        finally:
            for one in entered:
                one.leave()
            self._standing = {}

    def keep(self, members: Tensor) -> None:
        """Let the other members leave the batch: their rows are finished."""
        for name, stack in self._standing.items():
            self._standing[name] = stack[members]  # one by one: two stacks never lie in memory
            for one in self._stand_ins:
                if name in one.names.values():
                    one.bind(self._standing)

    def _draw(self, members: Sequence[Perturbation | None]) -> dict[str, Tensor]:
        """Round center + displacement of every member, tensor after tensor; a pair shares noise."""
        drawn: dict[object, Perturbation] = {}
        signed: list[tuple[object, int]] = []
        for place, member in enumerate(members):
            if isinstance(member, SeedPerturbation):
                upright = replace(member, sign=1)
                drawn[upright] = upright
                signed.append((upright, member.sign))
            elif member is not None:
                drawn[place] = member
                signed.append((place, 1))
            else:
                signed.append((None, 0))
        row_of = {key: row for row, key in enumerate(drawn)}
        rows = [(row_of.get(key, 0), sign) for key, sign in signed]
        return {
            info.name: self._stack(info, list(drawn.values()), rows)
            for info in self.masters.searched
        }

    def _stack(
        self, info: TensorInfo, drawn: Sequence[Perturbation], rows: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Write master + sign * displacement, rounded, for each (row of displacements, sign)."""
        device = self._like.device
        master = self.masters.tensors[info.name].to(device)
        displaced = self.masters.displacements(drawn, info, device)
        stack = self._like.new_empty(len(rows), *info.shape)
        for place, (row, sign) in enumerate(rows):
            # A sign only flips a bit: the floats are those of a member written alone.
            stack[place].copy_(torch.add(master, displaced[row], alpha=sign))
        return stack


def members_per_batch(
    asked: int | str, model: nn.Module, masters: Masters, dtype: torch.dtype
) -> int:
    """Return how many members stand at once; it follows from sizes alone, never from free memory.

    Args:
        asked: `engine.members_per_batch`, a number or `auto`.
        model: what serves them.
        masters: which of its tensors are searched.
        dtype: of the serving copy.

    Raises:
        GermlineError: more than one is asked for, and a searched module cannot be stacked.
    """
    if asked == 1:
        return 1
    refused = _refused(model, masters)
    if asked != "auto":
        if refused:
            raise GermlineError(
                f"engine.members_per_batch={asked}: the weights of {refused} cannot stand once "
                "per member; "
                "use engine.members_per_batch=1, or leave them out (space.exclude)"
            )
        return int(asked)
    size = sum(masters.tensors[info.name].numel() for info in masters.searched) * dtype.itemsize
    return 1 if refused else max(1, AUTO_BYTES // size)


class _StandIn:
    """A module's forward while members stand."""

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        """Note which attributes of a module are searched, and under which canonical names."""
        self.module = module
        self.names = names

    def enter(self, stacks: Mapping[str, Tensor]) -> None:
        """Take the place of the module's forward."""
        self.plain = self.module.forward
        self.bind(stacks)
        self.module.forward = self

    def leave(self) -> None:
        """Give it back."""
        del self.module.forward

    def bind(self, stacks: Mapping[str, Tensor]) -> None:
        """Take the tensors of the members now in the batch."""
        self.stacks = {attribute: stacks[name] for attribute, name in self.names.items()}
        self.members = len(next(iter(self.stacks.values())))

    def over(self, inputs: Tensor, **laid: Tensor | None) -> Tensor:
        """Run the module's own forward with these tensors laid over its parameters."""
        # An attribute of the instance hides the parameter; the parameter itself stays in place.
        hidden = self.module.__dict__
        hidden.update(laid)
        try:
            output: Tensor = self.plain(inputs)
        finally:
            for attribute in laid:
                del hidden[attribute]
        return output

    def __call__(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError


class _Linear(_StandIn):
    """Rows of member m times the weight of member m, as one batched product."""

    transposed = False

    def bind(self, stacks: Mapping[str, Tensor]) -> None:
        super().bind(stacks)
        bias = self.stacks.get("bias")
        shared: Tensor | None = self.module._parameters["bias"]
        self._bias = shared if bias is None else bias[:, None]
        self._weight = self.stacks.get("weight")
        first = next(iter(self.stacks.values()))
        self._few = FEW_ROWS if first.device.type == "cpu" else 0

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._weight is None:
            return self._own_bias(inputs)
        rows = inputs.reshape(self.members, -1, inputs.shape[-1])
        if rows.shape[1] <= self._few and not self.transposed:
            output = torch.bmm(self._weight, rows.mT).mT.contiguous()
        else:
            output = torch.bmm(rows, self._weight if self.transposed else self._weight.mT)
        if self._bias is not None:
            output.add_(self._bias)
        return output.view(*inputs.shape[:-1], -1)

    def _own_bias(self, inputs: Tensor) -> Tensor:
        """Share the product: members differ in the bias alone."""
        weight = self.module._parameters["weight"]
        assert weight is not None
        assert self._bias is not None
        shared = inputs @ (weight if self.transposed else weight.mT)
        shared.view(self.members, -1, shared.shape[-1]).add_(self._bias)
        return shared


class _Conv1D(_Linear):
    """GPT-2's linear layer, which keeps its weight as `[in, out]`."""

    transposed = True


class _Embedding(_StandIn):
    """The tables of all members below each other; a row looks into its member's."""

    def bind(self, stacks: Mapping[str, Tensor]) -> None:
        super().bind(stacks)
        stack = self.stacks["weight"]
        self._table = stack.flatten(0, 1)
        self._first = torch.arange(0, len(self._table), stack.shape[1], device=stack.device)

    def __call__(self, inputs: Tensor) -> Tensor:
        places = inputs.view(self.members, -1) + self._first[:, None]
        return self.over(places.view(inputs.shape), weight=self._table)


class _RMSNorm(_StandIn):
    """A norm whose forward multiplies by its weight: a stack of weights broadcasts in it."""

    def __call__(self, inputs: Tensor) -> Tensor:
        rows, laid = self._laid(inputs)
        return self.over(rows, **laid).flatten(0, 1)

    def _laid(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return inputs by member, and tensors that broadcast over them."""
        rows = inputs.unflatten(0, (self.members, -1))
        shape = (self.members, *[1] * (inputs.dim() - 1), -1)
        return rows, {name: stack.view(shape) for name, stack in self.stacks.items()}


class _LayerNorm(_RMSNorm):
    """torch's norms take no stack: they norm without weight and bias, which follow here."""

    def __call__(self, inputs: Tensor) -> Tensor:
        rows, laid = self._laid(inputs)
        normed = self.over(rows, **dict.fromkeys(self.module._parameters))
        for attribute, apply in (("weight", Tensor.mul_), ("bias", Tensor.add_)):
            own = laid.get(attribute, getattr(self.module, attribute, None))
            if own is not None:
                apply(normed, own)
        return normed.flatten(0, 1)


def _kind(module: nn.Module) -> type[_StandIn] | None:
    """Find the stand-in of a module; None where there is none."""
    kind = type(module)
    if kind.forward is nn.Linear.forward:
        return _Linear
    if kind.__name__ == "Conv1D":  # of transformers, known by name as in weights.py
        return _Conv1D
    if isinstance(module, nn.Embedding):
        return _Embedding
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return _LayerNorm
    return _RMSNorm if kind.__name__.endswith("RMSNorm") else None


def _owners(model: nn.Module, masters: Masters) -> dict[str, tuple[nn.Module, dict[str, str]]]:
    """Find modules that own searched parameters: name -> (module, attribute -> canonical name).

    A tied parameter has one canonical name and several owners.
    """
    searched = {info.name for info in masters.searched}
    canonical = {id(p): name for name, p in model.named_parameters() if name in searched}
    owners = {}
    for where, module in model.named_modules():
        names = {
            attribute: canonical[id(parameter)]
            for attribute, parameter in module._parameters.items()
            if id(parameter) in canonical
        }
        if names:
            owners[where] = (module, names)
    return owners


def _refused(model: nn.Module, masters: Masters) -> str | None:
    """Name a searched module, or tensor, that cannot stand once per member."""
    owners = _owners(model, masters)
    found = {name for _, names in owners.values() for name in names.values()}
    for info in masters.searched:
        if info.name not in found:
            return info.name
    for where, (module, _) in owners.items():
        # An expert of a mixture sees the rows routed to it: whose they are, nobody can tell.
        if _kind(module) is None or ".experts." in f"{where}.":
            return f"{where} ({type(module).__name__})"
    return None


def _stand_ins(model: nn.Module, masters: Masters) -> list[_StandIn]:
    stand_ins = []
    for module, names in _owners(model, masters).values():
        kind = _kind(module)
        assert kind is not None
        stand_ins.append(kind(module, names))
    return stand_ins
