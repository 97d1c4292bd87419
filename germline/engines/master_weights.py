"""The fp32 masters: theta, and the only place where it changes.

Evaluating members never writes to the masters; `apply` alone does, with elementwise fp32 arithmetic
in a fixed order, so a journal rebuilds them bit for bit. Only searched tensors have masters. Frozen
tensors keep the dtype in which they are stored (`model_tensors.py`). Digests are of the fp32
values of all tensors, never of rounded serving copies.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from germline.engines.model_tensors import first_not_finite, root_digest, tensor_digests
from germline.optimizers import AscentOptimizer
from germline.optimizers.base import StoredState
from germline.protocols import Members
from germline.spaces.base import BaseModel, BaseSpace, MemberAdapter
from germline.spaces.peft_files import write_adapter
from germline.spaces.sigma_units import SUFFIX, SigmaScales
from germline.types import (
    GermlineError,
    MeanUpdate,
    Perturbation,
    SeedPerturbation,
    TensorInfo,
    Update,
    VectorPerturbation,
)


def searched_names(space: BaseSpace | None, infos: Sequence[TensorInfo]) -> frozenset[str]:
    """Return the parameters of the model itself that a space searches."""
    if space is None or not space.searches_weights:
        return frozenset()
    return frozenset(info.name for info in space.select(infos))


OF_METHOD = "method."
"""The names of tensors that a method keeps begin so."""


class Masters:
    """All tensors by canonical name, and how an update changes the searched ones, which are fp32.

    Attributes:
        tensors: every parameter, in canonical order; then the tensors that a space adds to the
            model, such as an adapter or coordinates.
        infos: describes each of them.
        base: the model without the tensors that a space adds.
        adapted: the linear layers that have a LoRA adapter.
        units: per searched tensor, what sigma and learning rate are multiples of: the space's unit
            (see `spaces/sigma_units.py`) times the scale of its sigma.
        dimension: how many numbers are searched.
        method_state: what a method trains beside theta, by names that begin with `OF_METHOD`; it is
            in snapshots and digests, and in no exported model.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        infos: Sequence[TensorInfo],
        space: BaseSpace | None,
        optimizer: AscentOptimizer,
        sigma_unit: str,
        source: str = "",
        device: torch.device | None = None,
    ) -> None:
        """Use the tensors of a model without copying them.

        Args:
            tensors: all parameters by canonical name: searched ones in fp32, frozen ones in any
                dtype that holds the stored values exactly.
            infos: describes each of them, in canonical order.
            space: selects what is searched; None freezes everything.
            optimizer: of the searched tensors.
            sigma_unit: what sigma and learning rate are multiples of.
            source: the folder or Hugging Face id of the model.
            device: of the tensors that a space adds; None: that of the first parameter.
        """
        self.tensors = dict(tensors)
        self.space = space
        self.optimizer = optimizer
        self.searched: tuple[TensorInfo, ...] = ()
        self.method_state: dict[str, Tensor] = {}
        self._frozen_leaves: dict[str, bytes] = {}
        given, infos = dict(tensors), tuple(infos)
        digest = partial(self._digest_of, given, list(given))
        self.base = BaseModel(source, infos, digest, given, sigma_unit)
        begun = space.begin(self.base) if space else {}
        device = device or next(iter(given.values())).device
        self.tensors |= {info.name: tensor.to(device) for info, tensor in begun.items()}
        self.infos = (*infos, *begun)
        self.searched = space.select(self.infos) if space else ()
        self.adapted = tuple(one for one in infos if one.adapter_names[0] in self.tensors)
        self._starting_units = {
            info.name: space.unit(info, self.base, self.tensors) if space else 1.0
            for info in self.searched
        }
        self.units = dict(self._starting_units)
        self._scales = SigmaScales()
        sizes = [self.tensors[info.name].numel() for info in self.searched]
        ends = np.cumsum([0, *sizes]).tolist()
        self.dimension = int(ends[-1])
        names = [info.name for info in self.searched]
        self._coordinates = dict(zip(names, map(slice, ends, ends[1:]), strict=True))
        optimizer.begin({info.name: self.tensors[info.name] for info in self.searched})

    def displacements(
        self, members: Sequence[Perturbation], info: TensorInfo, device: torch.device | None = None
    ) -> Tensor:
        """Return the difference of members from the center in one tensor: fp32 `[members, *shape]`.

            sign * sigma * unit * noise        of a seeded member
            unit * offsets                     of a member given by its coordinates

        The result is a new tensor, on the device of the masters unless a device is given.
        """
        device = device or self.tensors[info.name].device
        rows = [self._displacement(member, info, device) for member in members]
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)

    def write_member(self, member: Perturbation, info: TensorInfo, serving: Tensor) -> None:
        """Write one tensor of a member, center + displacement, rounded to the serving dtype."""
        master = self.tensors[info.name]
        if self.space and isinstance(member, SeedPerturbation):
            scale = member.sign * member.sigma * self.units[info.name]
            self.space.write_perturbed(member, info, scale, master, serving)
        else:
            serving.copy_(self.displacements([member], info)[0].add_(master))

    def member_values(self, member: Perturbation | None) -> dict[str, Tensor]:
        """Return all tensors by name; those searched are center + displacement of the member."""
        values = dict(self.tensors)
        if member is not None:
            for info in self.searched:
                values[info.name] = self._member_value(member, info)
        return values

    def merged_tensors(self, member: Perturbation | None = None) -> dict[str, Tensor]:
        """Return the model's parameters as a member (None: the center) has them.

        An adapter and coordinates are merged into the weights they change.
        """
        values = self.member_values(member)
        if self.space:
            self.space.merge(values, self.adapted)
        return {info.name: values[info.name] for info in self.base.tensors}

    @property
    def adapter_rank(self) -> int | None:
        """The rank of members as LoRA adapters; None: inference engines write their weights."""
        return self.space.adapter_rank if self.space else None

    @property
    def adapter_layers(self) -> tuple[TensorInfo, ...]:
        """The linear layers that `member_adapters` change."""
        return self.adapted or self.searched

    def member_adapters(self, members: Members) -> list[MemberAdapter]:
        """Return members (None: the center) as LoRA adapters, for inference engines."""
        return self.space.member_adapters(members, self) if self.space else []

    def changed_weights(self) -> tuple[TensorInfo, ...]:
        """Return the parameters that members or updates change when written into the model."""
        return self.space.changed_weights(self) if self.space else ()

    def written_tensors(self, member: Perturbation | None) -> Iterator[tuple[str, Tensor]]:
        """Yield the `changed_weights` of a member (None: the center), fp32, by canonical name.

        Where the weights themselves are searched, one tensor at a time is computed.
        """
        changed = self.changed_weights()
        if not changed:
            return
        if set(changed) <= set(self.searched):
            for info in changed:
                value = self.tensors[info.name]
                yield info.name, value if member is None else self._member_value(member, info)
            return
        values = self.merged_tensors(member)
        yield from ((info.name, values[info.name]) for info in changed)

    def save_adapter(self, folder: Path) -> None:
        """Write the center's adapter, in fp32, as a folder that plain `peft` loads."""
        if self.space is None or not self.adapted:
            raise GermlineError(
                f"export: {type(self.space).__name__ if self.space else 'a model without a space'} "
                "has no adapter to write; only space.kind=lora has one"
            )
        names = [name for layer in self.adapted for name in layer.adapter_names]
        adapter = {name: self.tensors[name] for name in names}
        write_adapter(folder, adapter, self.adapted, scale=self.space.scale, base=self.base)

    def _member_value(self, member: Perturbation, info: TensorInfo) -> Tensor:
        return self.displacements([member], info)[0].add_(self.tensors[info.name])

    def _displacement(self, member: Perturbation, info: TensorInfo, device: torch.device) -> Tensor:
        if isinstance(member, VectorPerturbation):
            return self._by_coordinates(member.offsets, info).to(device)
        assert self.space is not None
        scale = member.sign * member.sigma * self.units[info.name]
        return self.space.noise(member, info, device).mul_(scale)

    def _by_coordinates(
        self, offsets: Float32[np.ndarray, " dimension"], info: TensorInfo
    ) -> Tensor:
        # Multiplied in numpy: the offsets may lie in read-only memory, of which torch warns.
        changed = offsets[self._coordinates[info.name]] * np.float32(self.units[info.name])
        return torch.from_numpy(changed).reshape(info.shape)

    def apply(self, update: Update | MeanUpdate) -> None:
        """Change theta by one update, tensor after tensor: scratch memory is one tensor.

        A `MeanUpdate` is added without the optimizer, because it is no gradient.
        """
        assert self.space is not None
        if isinstance(update, MeanUpdate):
            assert update.offsets is not None  # a strategy recalls those that a journal leaves out
            for info in self.searched:
                master = self.tensors[info.name]
                master.add_(self._by_coordinates(update.offsets, info).to(master.device))
            return
        if update.skipped:
            return
        self.optimizer.begin_update(update)
        for info in self.searched:
            device = self.tensors[info.name].device
            self.step(  # a name of the gradient would keep it while the next one is computed
                info,
                self.space.gradient(update, info, device),
                update.learning_rate,
                update.generation,
            )
            if update.sigma_update:
                self._scales.apply(update, update.sigma_update, self.space, info)
        if update.sigma_update:
            self._rescale()

    def step(self, info: TensorInfo, gradient: Tensor, learning_rate: float, index: int) -> None:
        """Take the step of this index of the optimizer in one tensor."""
        master, unit = self.tensors[info.name], self.units[info.name]
        gradient = gradient.to(master.device)
        self.optimizer.step(info.name, master, gradient, learning_rate, index, unit)

    def _rescale(self) -> None:
        for name, unit in self._starting_units.items():
            self.units[name] = unit * self._scales.of(name)

    def scales(self) -> Mapping[str, float]:
        """Return the scale of each searched tensor's sigma; see `spaces/sigma_units.py`."""
        return {info.name: self._scales.of(info.name) for info in self.searched}

    def check_finite(self, update: Update | MeanUpdate) -> None:
        """Check that an update left all weights within the range of fp32."""
        if name := first_not_finite({one.name: self.tensors[one.name] for one in self.searched}):
            found = f"strategy.sigma={update.sigma:g}"
            if isinstance(update, Update):
                found = f"strategy.learning_rate={update.learning_rate:g} and {found}"
            raise GermlineError(
                f"generation {update.generation}: its update made {name} infinite, with {found}. "
                "Everything before it is recorded; start a new run with lower ones"
            )

    def digest(self, state: Mapping[str, Tensor] | None = None) -> str:
        """Return the digest of all tensors, moments and scales; see `model_tensors`.

        Frozen tensors are hashed at the first digest and never again: nothing writes to them.
        `state` is what the masters would have loaded; None: what they have.
        """
        state = self.state() if state is None else state
        added = [name for name in state if name not in self.tensors]
        added.sort(key=lambda name: (name.endswith(SUFFIX), name))
        tensors = ChainMap(cast("dict[str, Tensor]", state), self.tensors)
        return self._digest_of(tensors, [*self.tensors, *added])

    def _digest_of(self, tensors: Mapping[str, Tensor], names: Sequence[str]) -> str:
        known = self._frozen_leaves
        frozen = self.tensors.keys() - {info.name for info in self.searched} - known.keys()
        known |= tensor_digests(tensors, [name for name in names if name in frozen])
        leaves = tensor_digests(tensors, [name for name in names if name not in known])
        return root_digest([leaves.get(name) or known[name] for name in names])

    def state(self) -> Mapping[str, Tensor]:
        """Return all that updates change: masters, moments, scales, `method_state`; no copies."""
        searched = {info.name: self.tensors[info.name] for info in self.searched}
        moments = dict(sorted(self.optimizer.state.items()))
        return {**searched, **moments, **self._scales.state, **self.method_state}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state`, in place and bit for bit; refuse that of another model."""
        for info in self.searched:
            name, master = info.name, self.tensors[info.name]
            if name not in state or (stored := state[name]).shape != master.shape:
                found = list(state[name].shape) if name in state else "nothing"
                raise GermlineError(
                    f"snapshot: expected {name} of shape {list(master.shape)}, found {found}: "
                    "it belongs to another model"
                )
            master.copy_(stored)
        rest = [name for name in state if name not in self.tensors]
        scales = {name: state[name] for name in rest if name.endswith(SUFFIX)}
        self.method_state = {n: state[n].clone() for n in rest if n.startswith(OF_METHOD)}
        others = scales.keys() | self.method_state.keys()
        moments = [name for name in rest if name not in others]
        self.optimizer.load_state_dict(StoredState(state.__getitem__, moments))
        self._scales.state = {name: scale.clone() for name, scale in scales.items()}
        self._rescale()
