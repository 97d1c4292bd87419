"""The fp32 masters: the one place where theta lives, and where it moves.

Evaluating members never touches them; `apply` is the only way they change, with elementwise fp32
arithmetic in a fixed order, so a journal rebuilds them to the bit. Only searched tensors have
masters. Frozen ones are held in the dtype they are stored in (`master_placement.py`), and digests
are of the fp32 values of all tensors, never of rounded serving copies.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from germline.engines.digests import root_digest, tensor_digests
from germline.engines.master_placement import model_in_errors
from germline.engines.per_tensor_sigma import SUFFIX, PerTensorSigma
from germline.engines.sigma_units import measure_unit, tensor_unit
from germline.optimizers import AscentOptimizer
from germline.protocols import (
    AdapterSpace,
    BaseModel,
    CoordinateSpace,
    DenseSpace,
    LowRankSpace,
    Space,
)
from germline.types import (
    GermlineError,
    MeanUpdate,
    Perturbation,
    SeedPerturbation,
    TensorInfo,
    TensorKind,
    Update,
    VectorPerturbation,
)


def list_tensors(model: nn.Module) -> tuple[TensorInfo, ...]:
    """List a model's parameters by canonical name; tied ones once, under the first name."""
    infos = []
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        layer = re.search(r"\.(\d+)\.", name)
        infos.append(
            TensorInfo(
                name=name,
                shape=tuple(parameter.shape),
                kind=_kind(owner, name),
                layer=int(layer[1]) if layer else None,
                transposed=_is_conv1d(owner) and parameter.dim() == 2,
                aliases=tuple(names[id(parameter)][1:]),
            )
        )
    return tuple(infos)


def _kind(owner: nn.Module, name: str) -> TensorKind:
    if name.endswith("bias"):
        return "bias"
    # An expert of a mixture sees the rows routed to it, so no member can be told from another.
    if ".experts." in name:
        return "expert"
    if isinstance(owner, nn.Linear) or _is_conv1d(owner):
        return "linear"
    if isinstance(owner, nn.Embedding):
        return "embedding"
    if type(owner).__name__.endswith("Router"):  # of transformers, as its linear layers above
        return "router"
    return "norm" if "norm" in type(owner).__name__.lower() else "other"


def _is_conv1d(owner: nn.Module) -> bool:
    """Know GPT-2's linear layer, which keeps its weight as `[in, out]`, without transformers."""
    return type(owner).__name__ == "Conv1D"


class Masters:
    """All tensors by canonical name, and how an update moves the searched ones, which are fp32.

    Attributes:
        tensors: every parameter, in canonical order; then what a space begins beside them, such as
            an adapter or coordinates.
        infos: what each of them is.
        adapted: the linear layers an adapter stands beside; empty where there is none.
        searched: the tensors the space selects.
        units: per searched tensor, what sigma and learning rate are multiples of (1, mean |W|, std
            W or root mean square W of the starting weights; for an adapter, of the layer beside
            which it stands; for coordinates, what their space says), times the scale of its sigma
            where tensors have sigmas of their own.
        dimension: how many numbers are searched.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        infos: Sequence[TensorInfo],
        space: Space | None,
        optimizer: AscentOptimizer,
        sigma_unit: str,
        source: str = "",
        device: torch.device | None = None,
    ) -> None:
        """Take over the tensors of a model; none of them is copied.

        Args:
            tensors: all parameters by canonical name: searched ones in fp32, frozen ones in any
                dtype that holds the stored values exactly.
            infos: what each of them is, in canonical order.
            space: what is searched; None freezes everything.
            optimizer: of the searched tensors.
            sigma_unit: what sigma and learning rate are multiples of.
            source: the folder or Hugging Face id of the model.
            device: where a space's own tensors go; that of the first parameter unless given.
        """
        self.tensors = dict(tensors)
        self.infos = tuple(infos)
        self.space = space
        self.optimizer = optimizer
        self.searched: tuple[TensorInfo, ...] = ()
        self._frozen_leaves: dict[str, bytes] = {}
        given, measure = dict(tensors), partial(measure_unit, sigma_unit)
        self.base = BaseModel(source, self.infos, partial(self._digest_of, given), given, measure)
        self.adapted: tuple[TensorInfo, ...] = ()
        if isinstance(space, AdapterSpace | CoordinateSpace):
            self._begin(space, device or next(iter(self.tensors.values())).device)
        with model_in_errors(source):
            self.searched = space.select(self.infos) if space else ()
        _check_dtypes(self.tensors, self.searched)
        self._starting_units = {
            info.name: tensor_unit(info, sigma_unit, self.tensors, self.adapted, space)
            for info in self.searched
        }
        self.units = dict(self._starting_units)
        self._sigmas = PerTensorSigma()
        sizes = [self.tensors[info.name].numel() for info in self.searched]
        ends = np.cumsum([0, *sizes]).tolist()
        self.dimension = int(ends[-1])
        names = [info.name for info in self.searched]
        self._coordinates = dict(zip(names, map(slice, ends, ends[1:]), strict=True))
        optimizer.begin({info.name: self.tensors[info.name] for info in self.searched})

    def _begin(self, space: AdapterSpace | CoordinateSpace, device: torch.device) -> None:
        """Put the starting adapter or coordinates among the tensors."""
        with model_in_errors(self.base.source):
            begun = space.begin(self.base)
        for info, tensor in begun.items():
            self.tensors[info.name] = tensor.to(device)
        self.infos += tuple(begun)
        layers = self.base.tensors
        self.adapted = tuple(one for one in layers if one.adapter_names[0] in self.tensors)

    def check_members_supported(self, members: Sequence[Perturbation | None]) -> None:
        """Say that only the center can play, when there is no space an engine knows how to serve.

        Raises:
            GermlineError: one of the members is not the center.
        """
        if any(member is not None for member in members):
            found = type(self.space).__name__ if self.space else "no space"
            raise GermlineError(
                f"members cannot be played with {found}: choose space.kind=full, low_rank or lora"
            )

    def displacements(
        self,
        members: Sequence[Perturbation],
        info: TensorInfo,
        device: torch.device | None = None,
    ) -> Tensor:
        """Work out how far members stand from the center in one tensor: fp32 `[members, *shape]`.

            sign * sigma * unit * noise        of a seeded member
            unit * offsets                     of one given by its coordinates

        The result is new, and lies where the masters are unless a device is given.
        """
        device = device or self.tensors[info.name].device
        rows = [self._displacement(member, info, device) for member in members]
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)

    def write_member(self, member: Perturbation, info: TensorInfo, serving: Tensor) -> None:
        """Write one tensor of a member, center + displacement, rounded to the serving dtype."""
        master = self.tensors[info.name]
        if isinstance(member, SeedPerturbation) and isinstance(self.space, DenseSpace):
            scale = member.sign * member.sigma * self.units[info.name]
            self.space.write_perturbed(member, info, scale, master, serving)
        else:
            serving.copy_(self.displacements([member], info)[0].add_(master))

    def _displacement(self, member: Perturbation, info: TensorInfo, device: torch.device) -> Tensor:
        if isinstance(member, VectorPerturbation):
            return self._by_coordinates(member.offsets, info).to(device)
        scale = member.sign * member.sigma * self.units[info.name]
        return self._noise(member, info, device).mul_(scale)

    def _by_coordinates(
        self, offsets: Float32[np.ndarray, " dimension"], info: TensorInfo
    ) -> Tensor:
        if len(offsets) != self.dimension:
            raise GermlineError(
                f"{len(offsets)} coordinates were given, but the space searches {self.dimension} "
                "numbers of this model: they belong to another run"
            )
        # Multiplied before torch sees it: the offsets may lie in memory that must not be written.
        moved = offsets[self._coordinates[info.name]] * np.float32(self.units[info.name])
        return torch.from_numpy(moved).reshape(info.shape)

    def _noise(self, member: SeedPerturbation, info: TensorInfo, device: torch.device) -> Tensor:
        space = self.space
        if isinstance(space, DenseSpace):
            return space.noise(member, info, device)
        if isinstance(space, AdapterSpace | CoordinateSpace):
            return space.noises([member], info, device)[0]
        if isinstance(space, LowRankSpace):
            a, b = space.factors([member], info)
            return (a[0] @ b[0].T).to(device)
        self.check_members_supported([member])
        return torch.zeros(info.shape, device=device)

    def apply(self, update: Update | MeanUpdate) -> None:
        """Move theta by one update, tensor after tensor: scratch memory is one tensor.

        A move is added as it is: there is no gradient, and the optimizer has no part in it.
        """
        if self.space is None:
            raise GermlineError(
                "these weights were loaded without a space, so nothing can be applied"
            )
        if isinstance(update, MeanUpdate):
            self._move(update)
            return
        if update.skipped:
            return
        drawn = update.with_noise_generation()
        for info in self.searched:
            master = self.tensors[info.name]
            self.optimizer.step(
                info.name,
                master,
                self.space.gradient(drawn, info, master.device),
                update.learning_rate,
                update.generation,
                self.units[info.name],
            )
            if update.sigma_update:
                self._sigmas.follow(drawn, update.sigma_update, self.space, info)
        self._rescale()

    def _rescale(self) -> None:
        for name, unit in self._starting_units.items():
            self.units[name] = unit * self._sigmas.of(name)

    def scales(self) -> Mapping[str, float]:
        """Return by how much each searched tensor's sigma differs from that of its members."""
        return {info.name: self._sigmas.of(info.name) for info in self.searched}

    def _move(self, move: MeanUpdate) -> None:
        if move.offsets is None:
            raise GermlineError(
                f"generation {move.generation} was read from a journal, which keeps what the "
                "strategy was told and not where that led: let the strategy recall it first"
            )
        for info in self.searched:
            master = self.tensors[info.name]
            master.add_(self._by_coordinates(move.offsets, info).to(master.device))

    def check_finite(self, update: Update | MeanUpdate) -> None:
        """Stop a run whose update threw the weights out of the range of fp32: it is over.

        Raises:
            GermlineError: a searched tensor holds an infinity or no number.
        """
        # The sums first: they need no memory, and are finite in all but strange models.
        sums = torch.stack([self.tensors[info.name].sum() for info in self.searched]).tolist()
        for info, total in zip(self.searched, sums, strict=True):
            master = self.tensors[info.name]
            if not math.isfinite(total) and not master.isfinite().all():
                found = f"strategy.sigma={update.sigma:g}"
                if isinstance(update, Update):
                    found = f"strategy.learning_rate={update.learning_rate:g} and {found}"
                raise GermlineError(
                    f"generation {update.generation}: its update made {info.name} infinite, with "
                    f"{found}. Everything before it is recorded; start a new run with lower ones"
                )

    def digest(self) -> str:
        """Return the digest of all tensors, moments and scales; see `digests.py`.

        Frozen tensors are hashed at the first digest and never again: nothing writes to them.
        """
        return self._digest_of({**self.tensors, **self._beside()})

    def _digest_of(self, tensors: Mapping[str, Tensor]) -> str:
        searched = {info.name for info in self.searched}
        frozen = self.tensors.keys() - searched - self._frozen_leaves.keys()
        self._frozen_leaves |= tensor_digests(
            {name: tensors[name] for name in tensors if name in frozen}
        )
        changing = tensors.keys() - self._frozen_leaves.keys()
        leaves = tensor_digests({name: tensors[name] for name in tensors if name in changing})
        return root_digest(leaves.get(name) or self._frozen_leaves[name] for name in tensors)

    def _beside(self) -> dict[str, Tensor]:
        """Return what adapts beside the masters: optimizer moments, scales of sigmas."""
        return {**self.optimizer.state_dict(), **self._sigmas.state_dict()}

    def state(self) -> Mapping[str, Tensor]:
        """Return what updates change: searched masters, then moments and scales; not copies."""
        searched = {info.name: self.tensors[info.name] for info in self.searched}
        return {**searched, **self._beside()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned, in place and bit for bit.

        Raises:
            GermlineError: a tensor is missing or has another shape: the state is of another model.
        """
        for info in self.searched:
            name, master = info.name, self.tensors[info.name]
            if name not in state or state[name].shape != master.shape:
                found = list(state[name].shape) if name in state else "nothing"
                raise GermlineError(
                    f"snapshot: expected {name} of shape {list(master.shape)}, found {found}: "
                    "it belongs to another model"
                )
            master.copy_(state[name])
        rest = {name: tensor for name, tensor in state.items() if name not in self.tensors}
        scales = {name: rest.pop(name) for name in list(rest) if name.endswith(SUFFIX)}
        self.optimizer.load_state_dict(rest)
        self._sigmas.load_state_dict(scales)
        self._rescale()


def _check_dtypes(tensors: Mapping[str, Tensor], searched: Sequence[TensorInfo]) -> None:
    """Refuse what updates would round and what a digest of fp32 values could not tell apart."""
    names = {info.name for info in searched}
    for name, tensor in tensors.items():
        if name in names and tensor.dtype != torch.float32:
            raise GermlineError(
                f"masters must be float32, but {name} is {tensor.dtype}: load it in float32"
            )
        if not tensor.is_floating_point() or tensor.dtype.itemsize > torch.float32.itemsize:
            raise GermlineError(
                f"weights must be float32 or narrower, but {name} is {tensor.dtype}: convert the "
                "model's files to float32"
            )
