"""Which tensors are searched: glob patterns over canonical names, and ranges of decoder layers."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from germline.config import Lora, LowRank, Singular, SpaceBase, Subspace
from germline.types import GermlineError, TensorInfo, TensorKind

UNSUPPORTED: Sequence[TensorKind] = ("expert", "router", "other")
"""Kinds of matrices that are not linear layers, such as the experts of a mixture, which see the
tokens routed to them."""


def select_tensors(tensors: Sequence[TensorInfo], config: SpaceBase) -> tuple[TensorInfo, ...]:
    """Keep the tensors that `include`, `exclude` and `layers` of a space select, in order."""
    tensors = [tensor for tensor in tensors if tensor.kind != "non_text"]
    names = [tensor.name for tensor in tensors]
    for setting, patterns in (("include", config.include), ("exclude", config.exclude)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise GermlineError(_matches_nothing(setting, pattern, tensors))
    layers = None if config.layers is None else parse_layers(config.layers, tensors)
    kept = tuple(
        tensor
        for tensor in tensors
        if any(fnmatchcase(tensor.name, pattern) for pattern in config.include)
        and not any(fnmatchcase(tensor.name, pattern) for pattern in config.exclude)
        and (layers is None or tensor.layer in layers)
    )
    if not kept:
        raise GermlineError(
            f"space: include={list(config.include)}, exclude={list(config.exclude)} and "
            f"layers={config.layers!r} together select no tensor: widen one of them"
        )
    return kept


def select_linear(
    tensors: Sequence[TensorInfo], config: LowRank | Lora | Subspace | Singular
) -> tuple[TensorInfo, ...]:
    """Keep the selected linear layers of the decoder blocks.

    Embeddings, norms, biases and the output head are excluded: engines that serve members as
    adapters cannot perturb them, and results must not depend on the engine. Other selected weight
    matrices are refused, unless `unsupported` is `skip`.
    """
    matrices = [
        tensor
        for tensor in tensors
        if tensor.layer is not None
        and (tensor.kind == "linear" or (tensor.kind in UNSUPPORTED and len(tensor.shape) > 1))
    ]
    if not matrices:
        raise GermlineError(
            f"space.kind={config.kind} searches linear layers of decoder blocks, and this model "
            "has none: use space.kind=full"
        )
    kept = select_tensors(matrices, config)
    linear = tuple(tensor for tensor in kept if tensor.kind == "linear")
    unsupported = [tensor for tensor in kept if tensor.kind != "linear"]
    if unsupported and (config.unsupported == "refuse" or not linear):
        first, more = unsupported[0], len(unsupported) - 1
        found = f"{first.name} {list(first.shape)} (kind {first.kind}; {more} more)"
        remedy = "leave them unperturbed with space.unsupported=skip, or " if linear else ""
        raise GermlineError(
            f"space.kind={config.kind} can perturb linear layers only, but the settings also "
            f"select {found}: {remedy}use space.kind=full"
        )
    return linear


def factor_sides(layers: Sequence[TensorInfo]) -> int:
    """Return the inputs plus outputs of linear layers: the numbers of rank-1 factors."""
    return sum(sum(layer.out_in_features) for layer in layers)


def parse_layers(text: str, tensors: Sequence[TensorInfo]) -> frozenset[int]:
    """Parse `0-9` or `0,3,20-23` as layer indices of a model."""
    present = {tensor.layer for tensor in tensors if tensor.layer is not None}
    layers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last if "-" in part else first
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise GermlineError(f"space.layers: {text!r} must look like 0-9 or 0,3,20-23")
        layers.update(range(int(first), int(last) + 1))
    if not layers or not layers <= present:
        raise GermlineError(
            f"space.layers: {text!r} asks for layers {sorted(layers - present)}; "
            f"the model has layers 0-{max(present, default=-1)}: drop space.layers to search all "
            "of them, or name some of these"
        )
    return frozenset(layers)


def _matches_nothing(setting: str, pattern: str, tensors: Sequence[TensorInfo]) -> str:
    for tensor in tensors:
        for alias in tensor.aliases:
            if fnmatchcase(alias, pattern):
                return (
                    f"space.{setting}: {pattern!r} is {alias}, which this model ties to "
                    f"{tensor.name}: they are one tensor, searched once; write {tensor.name}"
                )
    names = [tensor.name for tensor in tensors]
    near = difflib.get_close_matches(pattern, names, cutoff=0.0)
    return (
        f"space.{setting}: the pattern {pattern!r} matches none of the {len(names)} tensors; "
        f"patterns are globs over whole names, such as '*.mlp.*'; near: {', '.join(near)}"
    )
