"""Members of family `dense`, each with its own copy of the searched weights.

- `BatchedDenseMembers` runs n members at once. A searched tensor becomes a stack `[n, *shape]`,
  rows are ordered by member, a linear layer is one batched product, and frozen tensors stay shared.
  Small models gain from it: with one member at a time the processor waits for Python most of the
  time. The model's parameters are not written to: the forward of a module with searched tensors is
  replaced, and where the module's own forward can do the work, it runs with the stack in place of
  its attribute.
- `DenseMembers` runs one member at a time: it writes cast(center + sign sigma eps) into the serving
  tensors, and afterwards resets them from the masters. Noise is never subtracted, because the
  rounding errors add up (81 % of a step per generation in bf16, measured by the field).

Memory of n members at once: n times the bytes of the searched tensors in the serving dtype, and n
times the fp32 noise of the largest of them.

Limits of n members at once: linear layers, embeddings and norms of the last dimension. Experts of a
mixture get rows that were routed to them, so their members run one after another.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature

import torch
from torch import Tensor, nn

from germline.engines.batched_members import BatchMembers, MemberForward
from germline.engines.master_weights import Masters
from germline.protocols import Members
from germline.types import Perturbation, SeedPerturbation, TensorInfo

log = logging.getLogger(__name__)

AUTO_BYTES = 64 * 2**20
"""Most bytes of the stacks of `engine.members_per_batch=auto`: larger ones exceed every cache and
are not faster.

Frozen, because it decides which members share a batch when a run is resumed.
"""

FEW_ROWS = 8
"""On a CPU, up to so many rows, weight times rows takes half the time of rows times weight."""


class DenseMembers(BatchMembers):
    """One member at a time, written into the serving tensors from the fp32 masters."""

    together = 1

    def __init__(self, serving: Mapping[str, Tensor], masters: Masters) -> None:
        super().__init__(serving, masters)
        self.serving = serving

    @contextmanager
    def applied(self, members: Members) -> Iterator[None]:
        """Serve one member during a `with` block, then reset from the masters."""
        (member,) = members
        if member is None:
            yield
            return
        try:
            for info in self.masters.searched:
                self.masters.write_member(member, info, self.serving[info.name])
            yield
        finally:
            for info in self.masters.searched:
                self.serving[info.name].copy_(self.masters.tensors[info.name])


class BatchedDenseMembers(BatchMembers):
    """Several members at once, each with its own copy `[members, *shape]` of searched tensors."""

    forwards: "Sequence[_StackedForward]"

    def __init__(
        self, model: nn.Module, serving: Mapping[str, Tensor], masters: Masters, together: int
    ) -> None:
        super().__init__(serving, masters)
        self.together = together
        self.forwards = [
            kind(module, names)
            for module, names in _owners(model, masters).values()
            if (kind := _kind(module))
        ]

    def keep(self, members: Tensor) -> None:
        """Drop all other members from the batch: their rows are finished."""
        for name, stack in self.drawn.items():
            self.drawn[name] = stack[members]  # one by one: memory holds one old stack at most
            for forward in self.forwards:
                if name in forward.names.values():
                    forward.bind(self.drawn)

    def draw(self, members: Members) -> dict[str, Tensor]:
        """Round center + displacement of every member, tensor after tensor; a pair shares noise."""
        if not any(members):
            return {}
        directions: dict[Perturbation, int] = {}
        rows: list[tuple[int, int]] = []
        for member in members:
            if member is None:
                rows.append((0, 0))
            else:
                sign, direction = 1, member
                if isinstance(member, SeedPerturbation):
                    sign, direction = member.sign, replace(member, sign=1)
                rows.append((directions.setdefault(direction, len(directions)), sign))
        drawn = list(directions)
        return {info.name: self._stack(info, drawn, rows) for info in self.masters.searched}

    def _stack(
        self, info: TensorInfo, drawn: Sequence[Perturbation], rows: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Write master + sign * displacement, rounded, for each (row of displacements, sign)."""
        device = self.like.device
        master = self.masters.tensors[info.name].to(device)
        displaced = self.masters.displacements(drawn, info, device)
        stack = self.like.new_empty(len(rows), *info.shape)
        for place, (row, sign) in enumerate(rows):
            # A sign flips one bit, so the floats are those that `write_member` computes.
            stack[place].copy_(torch.add(master, displaced[row], alpha=sign))
        return stack


def dense_members(
    model: nn.Module, serving: Mapping[str, Tensor], masters: Masters, asked: int | str
) -> DenseMembers | BatchedDenseMembers:
    """Make the members of a dense space, as many at once as `engine.members_per_batch` says.

    `auto` follows from sizes alone, never from free memory. Members run one after another where a
    batch cannot have several copies of the searched weights.
    """
    can_be_stacked = _can_be_stacked(model, masters)
    if asked not in ("auto", 1) and not can_be_stacked:
        log.warning(
            "engine.members_per_batch=%s: members run one after another, as a batch cannot have "
            "several copies of the searched weights of this model",
            asked,
        )
    if asked == "auto":
        asked = max(1, AUTO_BYTES // sum(serving[info.name].nbytes for info in masters.searched))
    if asked == 1 or not can_be_stacked:
        return DenseMembers(serving, masters)
    return BatchedDenseMembers(model, serving, masters, int(asked))


class _StackedForward(MemberForward):
    """A forward while several members are in the batch, of a module with searched tensors.

    `names` are their canonical names by attribute of the module.
    """

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        self.module = module
        self.names = names
        self.plain = module.forward

    def bind(self, drawn: Mapping[str, Tensor]) -> None:
        self.stacks = {attribute: drawn[name] for attribute, name in self.names.items()}
        self.members = len(next(iter(self.stacks.values())))

    def call_plain(self, inputs: Tensor, **tensors: Tensor | None) -> Tensor:
        """Run the module's own forward with these tensors in place of its parameters."""
        # An attribute of the instance hides the parameter of that name, which is not changed.
        attributes = self.module.__dict__
        attributes.update(tensors)
        try:
            output: Tensor = self.plain(inputs)
        finally:
            for attribute in tensors:
                del attributes[attribute]
        return output


class _Linear(_StackedForward):
    """Rows of member m times the weight of member m, as one batched product."""

    transposed = False

    def bind(self, drawn: Mapping[str, Tensor]) -> None:
        super().bind(drawn)
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
        """Share the product, as members differ in the bias alone."""
        weight = self.module._parameters["weight"]
        assert weight is not None
        assert self._bias is not None
        shared = inputs @ (weight if self.transposed else weight.mT)
        shared.view(self.members, -1, shared.shape[-1]).add_(self._bias)
        return shared


class _Conv1D(_Linear):
    """GPT-2's linear layer, which keeps its weight as `[in, out]`."""

    transposed = True


class _Embedding(_StackedForward):
    """One table of all members' rows; the ids of a member are offset to its part."""

    def bind(self, drawn: Mapping[str, Tensor]) -> None:
        super().bind(drawn)
        stack = self.stacks["weight"]
        self._table = stack.flatten(0, 1)
        self._first = torch.arange(0, len(self._table), stack.shape[1], device=stack.device)

    def __call__(self, inputs: Tensor) -> Tensor:
        places = inputs.view(self.members, -1) + self._first[:, None]
        return self.call_plain(places.view(inputs.shape), weight=self._table)


class _RMSNorm(_StackedForward):
    """A norm whose forward multiplies by its weight: a stack of weights broadcasts in it."""

    def __call__(self, inputs: Tensor) -> Tensor:
        rows, tensors = self._broadcast(inputs)
        return self.call_plain(rows, **tensors).flatten(0, 1)

    def _broadcast(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the inputs by member, and the stacks in a shape that broadcasts over them."""
        rows = inputs.unflatten(0, (self.members, -1))
        shape = (self.members, *[1] * (inputs.dim() - 1), -1)
        return rows, {name: stack.view(shape) for name, stack in self.stacks.items()}


class _LayerNorm(_RMSNorm):
    """torch's norms take no stack: weight and bias are applied after the norm."""

    def __call__(self, inputs: Tensor) -> Tensor:
        rows, tensors = self._broadcast(inputs)
        normed = self.call_plain(rows, **dict.fromkeys(self.module._parameters))
        for attribute, apply in (("weight", Tensor.mul_), ("bias", Tensor.add_)):
            own = tensors.get(attribute, getattr(self.module, attribute, None))
            if own is not None:
                apply(normed, own)
        return normed.flatten(0, 1)


def _kind(module: nn.Module) -> type[_StackedForward] | None:
    """Return the stacked forward of a module; None where there is none."""
    kind = type(module)
    if kind.forward is nn.Linear.forward:
        return _Linear
    if kind.__name__ == "Conv1D":  # of transformers, which is not imported here
        return _Conv1D
    if isinstance(module, nn.Embedding):
        # OPT's table of positions computes its indices from an attention mask.
        return _Embedding if len(signature(module.forward).parameters) == 1 else None
    if kind.forward in (nn.LayerNorm.forward, nn.RMSNorm.forward):
        return _LayerNorm
    return _RMSNorm if kind.__name__.endswith("RMSNorm") else None


def _owners(model: nn.Module, masters: Masters) -> dict[str, tuple[nn.Module, dict[str, str]]]:
    """Find modules that own searched parameters: name -> (module, attribute -> canonical name)."""
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


def _can_be_stacked(model: nn.Module, masters: Masters) -> bool:
    """Say whether every searched tensor is of a module that has a stacked forward."""
    owners = _owners(model, masters)
    found = {name for _, names in owners.values() for name in names.values()}
    return found >= {info.name for info in masters.searched} and all(
        # The rows that are routed to an expert no longer tell to which member they belong.
        _kind(module) is not None and ".experts." not in f"{where}."
        for where, (module, _) in owners.items()
    )
